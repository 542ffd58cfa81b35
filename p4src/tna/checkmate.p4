// Checkmate for TNA (Tofino 1, and Tofino 2 with -DTOFINO2): a thin shim around the shared controls.
#include <core.p4>
#ifdef TOFINO2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

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

// Metadata does not survive the traffic manager, so a bridge header in front of the packet carries it to egress.
header bridge_h {
    flow_id_t flow_id;
    bit<32> position;
    bit<1> flooded;
    bit<1> replica_tcp;
    @padding bit<5> pad;
    port_id_t ingress_port;
}

struct tna_headers_t {
    bridge_h bridge;
    headers_t packet;
}

struct egress_metadata_t {
    metadata_t shared_part;
    bit<16> ipv4_residual;
    bit<16> tcp_residual;
}

parser IngressParser(packet_in packet, out tna_headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t ig_intr_md) {
    PacketParser() packet_parser;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        packet_parser.apply(packet, hdr.packet);
        transition accept;
    }
}

control Ingress(inout tna_headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Forward() forward;
    @name(".not_replicated")
    Counter<bit<64>, reason_t>(REASONS, CounterType_t.PACKETS_AND_BYTES) not_replicated;

    // Tables only for placement: otherwise the compiler uses two more stages on Tofino 2. Moves instead of conditions for
    // the same reason.
    action tell_traffic_manager() {
        ig_dprsr_md.digest_type = 2w0 ++ meta.flow_started;
        ig_dprsr_md.drop_ctl = 2w0 ++ meta.drop;
        ig_tm_md.mcast_grp_a = meta.group;
    }

    @hidden
    @stage(3)
    table decide {
        actions = { tell_traffic_manager; }
        const default_action = tell_traffic_manager();
    }

    action set_unicast_port() {
        ig_tm_md.ucast_egress_port = meta.egress_port;
    }

    @hidden
    @stage(3)
    table unicast {
        actions = { set_unicast_port; }
        const default_action = set_unicast_port();
    }

    apply {
        meta.ingress_port = ig_intr_md.ingress_port;
        forward.apply(hdr.packet, meta);
        not_replicated.count(meta.reason);
        decide.apply();
        if (meta.group == 0) {
            // No unicast port beside a group: a flow's group also contains its original egress port, as on v1model.
            unicast.apply();
        }
        hdr.bridge.setValid();
        hdr.bridge.ingress_port = meta.ingress_port;
        hdr.bridge.flow_id = meta.flow_id;
        hdr.bridge.position = meta.position;
        hdr.bridge.flooded = meta.flooded;
        hdr.bridge.replica_tcp = meta.replica_tcp;
    }
}

control IngressDeparser(packet_out packet, inout tna_headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Digest<flow_start_t>() flow_start;

    apply {
        if (ig_dprsr_md.digest_type == 1) {
            flow_start.pack({ meta.flow_id, hdr.packet.tcp.seq, hdr.packet.ipv4.src_addr, hdr.packet.ipv4.dst_addr,
                              hdr.packet.tcp.src_port, hdr.packet.tcp.dst_port });
        }
        packet.emit(hdr);
    }
}

// Parses only as far as rewriting reaches; the rest stays payload. The parser subtracts the old values from the checksums,
// the deparser adds the new ones: never a sum over the payload.
parser EgressParser(packet_in packet, out tna_headers_t hdr, out egress_metadata_t meta,
                    out egress_intrinsic_metadata_t eg_intr_md) {
    Checksum() ipv4_checksum;
    Checksum() tcp_checksum;

    state start {
        packet.extract(eg_intr_md);
        packet.extract(hdr.bridge);
        packet.extract(hdr.packet.ethernet);
        transition select(hdr.packet.ethernet.ether_type) {
            ETHERTYPE_VLAN: parse_vlan;
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.packet.vlan);
        transition select(hdr.packet.vlan.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.packet.ipv4);
        ipv4_checksum.subtract({ hdr.packet.ipv4.checksum, hdr.packet.ipv4.dst_addr });
        tcp_checksum.subtract({ hdr.packet.ipv4.dst_addr });
        meta.ipv4_residual = ipv4_checksum.get();
        transition select(hdr.bridge.replica_tcp) {
            1: parse_tcp;
            default: accept;
        }
    }

    state parse_tcp {
        packet.extract(hdr.packet.tcp);
        tcp_checksum.subtract({ hdr.packet.tcp.dst_port, hdr.packet.tcp.seq, hdr.packet.tcp.checksum });
        meta.tcp_residual = tcp_checksum.get();
        transition accept;
    }
}

control Egress(inout tna_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
               inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
               inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Rewrite() rewrite;
    apply {
        meta.shared_part.rid = eg_intr_md.egress_rid;
        meta.shared_part.flow_id = hdr.bridge.flow_id;
        meta.shared_part.position = hdr.bridge.position;
        meta.shared_part.replica_tcp = hdr.bridge.replica_tcp;
        rewrite.apply(hdr.packet, meta.shared_part);
        if (meta.shared_part.drop == 1 ||
                (hdr.bridge.flooded == 1 && eg_intr_md.egress_port == hdr.bridge.ingress_port)) {
            eg_dprsr_md.drop_ctl = 1;
        }
        hdr.bridge.setInvalid();
    }
}

control EgressDeparser(packet_out packet, inout tna_headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;
    Checksum() tcp_checksum;

    apply {
        if (meta.shared_part.rewritten == 1) {
            hdr.packet.ipv4.checksum = ipv4_checksum.update({ hdr.packet.ipv4.dst_addr, meta.ipv4_residual });
            hdr.packet.tcp.checksum = tcp_checksum.update({ hdr.packet.ipv4.dst_addr, hdr.packet.tcp.dst_port,
                                                            hdr.packet.tcp.seq, meta.tcp_residual });
        }
        packet.emit(hdr);
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
