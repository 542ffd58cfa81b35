// Checkmate for v1model (BMv2): a thin shim around the shared controls.
#include <core.p4>
#include <v1model.p4>

#include "target.p4"
#include "../include/headers.p4"
#include "../include/metadata.p4"
#include "../include/constants.p4"
#include "../include/parser.p4"
#include "connection_memory.p4"
#include "../include/replicate_tcp.p4"
#include "../include/replicate_rdma.p4"
#include "../include/replicate.p4"
#include "../include/forward.p4"
#include "../include/rewrite.p4"

parser CheckmateParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    PacketParser() packet_parser;

    state start {
        packet_parser.apply(packet, hdr);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    // Wrong checksums are forwarded unchanged: the receiver's verdict must not change.
    apply { }
}

control CheckmateIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;
    @name(".not_replicated")
    counter(REASONS, CounterType.packets_and_bytes) not_replicated;

    apply {
        meta.ingress_port = standard_metadata.ingress_port;
        forward.apply(hdr, meta);
        not_replicated.count((bit<32>)meta.reason);
        if (meta.flow_started == 1) {
            digest<flow_start_t>(1, { meta.flow_id, hdr.tcp.seq, hdr.ipv4.src_addr, hdr.ipv4.dst_addr,
                                      hdr.tcp.src_port, hdr.tcp.dst_port });
        }
        if (meta.drop == 1) {
            mark_to_drop(standard_metadata);
        } else if (meta.group != 0) {
            // A multicast group overrides the unicast port: a flow's group holds its original egress port too.
            standard_metadata.mcast_grp = meta.group;
        } else {
            standard_metadata.egress_spec = meta.egress_port;
        }
    }
}

control CheckmateEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Rewrite() rewrite;

    apply {
        meta.rid = standard_metadata.egress_rid;
        rewrite.apply(hdr, meta);
        // v1model does not prune the ingress port from a group.
        if (meta.drop == 1 || (meta.flooded == 1 && standard_metadata.egress_port == standard_metadata.ingress_port)) {
            mark_to_drop(standard_metadata);
        }
    }
}

control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten == 1,
                        { meta.not_ipv4_checksum, meta.not_dst_addr, hdr.ipv4.dst_addr },
                        hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(meta.rewritten == 1,
                        { meta.not_tcp_checksum, meta.not_dst_addr, hdr.ipv4.dst_addr,
                          meta.not_dst_port, hdr.tcp.dst_port, meta.not_seq, hdr.tcp.seq },
                        hdr.tcp.checksum, HashAlgorithm.csum16);
    }
}

control CheckmateDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(CheckmateParser(), VerifyNothing(), CheckmateIngress(), CheckmateEgress(), UpdateChecksums(),
         CheckmateDeparser()) main;
