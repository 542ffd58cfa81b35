// Where a packet can go: unicast, drop, multicast, clones, resubmit, recirculate, truncate; and the metadata there.
#include "common.p4"

header order_t {
    bit<8>  command;
    bit<16> argument;
    bit<8>  rounds;
}
// Written in egress: what the packet's copy sees.
header report_t {
    bit<8>  instance_type;
    bit<16> egress_port;
    bit<16> egress_rid;
    bit<16> ingress_port;
    bit<32> packet_length;
    bit<16> kept;
    bit<16> lost;
    bit<48> ingress_time;
    bit<48> egress_time;
}

struct headers_t { order_t order; report_t report; }
struct metadata_t {
    @field_list(1) bit<16> kept;
    bit<16> lost;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.order);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        // Of a packet that comes round, the fields in the list are still what they were, the others are 0.
        meta.kept = meta.kept + 1;
        meta.lost = meta.lost + 1;
        standard_metadata.egress_spec = 1;
        if (hdr.order.command == 1) {
            mark_to_drop(standard_metadata);
        } else if (hdr.order.command == 2) {
            standard_metadata.mcast_grp = hdr.order.argument;
        } else if (hdr.order.command == 3) {
            clone(CloneType.I2E, (bit<32>)hdr.order.argument);
            hdr.order.rounds = 0xcc;
        } else if (hdr.order.command == 4) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.order.argument, 1);
            meta.kept = 0x77;
            mark_to_drop(standard_metadata);
        } else if (hdr.order.command == 5 && meta.kept < 3) {
            resubmit_preserving_field_list(1);
        } else if (hdr.order.command == 9) {
            truncate((bit<32>)hdr.order.argument);
        } else if (hdr.order.command == 10) {
            standard_metadata.mcast_grp = hdr.order.argument;
            mark_to_drop(standard_metadata);
            standard_metadata.egress_spec = 2;
        } else if (hdr.order.command == 11) {
            mark_to_drop(standard_metadata);
            standard_metadata.mcast_grp = hdr.order.argument;
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        bool again = false;
        if (hdr.order.command == 6 && standard_metadata.instance_type == 0) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.order.argument, 1);
            hdr.order.rounds = 0xdd;
        } else if (hdr.order.command == 7 && hdr.order.rounds < 3) {
            hdr.order.rounds = hdr.order.rounds + 1;
            recirculate_preserving_field_list(1);
            again = true;
        } else if (hdr.order.command == 8) {
            mark_to_drop(standard_metadata);
        } else if (hdr.order.command == 12 && standard_metadata.instance_type == 0) {
            clone(CloneType.E2E, (bit<32>)hdr.order.argument);
            mark_to_drop(standard_metadata);
        } else if (hdr.order.command == 13) {
            recirculate_preserving_field_list(1);
            again = true;
        }
        if (!again) {
            hdr.report.setValid();
            hdr.report.instance_type = (bit<8>)standard_metadata.instance_type;
            hdr.report.egress_port = (bit<16>)standard_metadata.egress_port;
            hdr.report.egress_rid = standard_metadata.egress_rid;
            hdr.report.ingress_port = (bit<16>)standard_metadata.ingress_port;
            hdr.report.packet_length = standard_metadata.packet_length;
            hdr.report.kept = meta.kept;
            hdr.report.lost = meta.lost;
            hdr.report.ingress_time = standard_metadata.ingress_global_timestamp;
            hdr.report.egress_time = standard_metadata.egress_global_timestamp;
        }
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.report); packet.emit(hdr.order); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), TestEgress(), NoCompute(), TestDeparser()) main;
