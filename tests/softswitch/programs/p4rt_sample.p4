// A small switch with one of everything that P4Runtime can touch: exact, LPM, ternary, range and optional keys,
// constant entries, direct and indirect counters, a register, a digest, multicast, clone, packet-in and packet-out.
// Compiled with:
//   p4c --target bmv2 --arch v1model --p4runtime-files p4rt_sample.p4info.txtpb -o . p4rt_sample.p4
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> id;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    @padding bit<7> pad;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct metadata_t {
    bit<8> kind;
    bit<7> reason;
}

// A source address that the switch has not seen.
struct learn_t {
    bit<48> src;
    bit<9>  port;
}

parser SampleParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: from_cpu;
            default: ethernet;
        }
    }
    state from_cpu {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SampleIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) dmac_counter;
    direct_counter(CounterType.packets_and_bytes) acl_counter;
    counter(8, CounterType.packets_and_bytes) kinds;
    register<bit<16>>(4) lengths;

    action drop() {
        mark_to_drop(std);
    }

    action forward(bit<9> port) {
        std.egress_spec = port;
    }

    action flood(bit<16> group) {
        std.mcast_grp = group;
    }

    action to_cpu(bit<7> reason) {
        meta.reason = reason;
        std.egress_spec = CPU_PORT;
    }

    action mirror(bit<32> session) {
        clone(CloneType.I2E, session);
    }

    action learn() {
        digest<learn_t>(1, { hdr.ethernet.src, std.ingress_port });
    }

    action set_kind(bit<8> kind) {
        meta.kind = kind;
    }

    table smac {
        key = { hdr.ethernet.src: exact @name("src"); }
        actions = { learn; NoAction; }
        const default_action = learn();
        size = 16;
    }

    table dmac {
        key = { hdr.ethernet.dst: exact @name("dst"); }
        actions = { forward; flood; to_cpu; drop; @defaultonly NoAction; }
        default_action = drop();
        counters = dmac_counter;
        size = 4;
    }

    table routes {
        key = { hdr.ipv4.dst: lpm @name("prefix"); }
        actions = { @tableonly forward; drop; NoAction; }
        default_action = NoAction();
        size = 16;
    }

    table acl {
        key = {
            hdr.ipv4.src: ternary @name("src");
            hdr.ipv4.protocol: optional @name("protocol");
            hdr.ipv4.ttl: range @name("ttl");
        }
        actions = { drop; mirror; NoAction; }
        default_action = NoAction();
        counters = acl_counter;
        size = 16;
    }

    table kind {
        key = { hdr.ethernet.type: exact @name("type"); }
        actions = { set_kind; }
        const entries = {
            0x0800: set_kind(4);
            0x86dd: set_kind(6);
        }
        default_action = set_kind(0);
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            smac.apply();
            dmac.apply();
            kind.apply();
            kinds.count((bit<32>) (meta.kind & 7));
            lengths.write((bit<32>) (std.ingress_port & 3), (bit<16>) std.packet_length);
            if (hdr.ipv4.isValid()) {
                routes.apply();
                acl.apply();
            }
        }
    }
}

control SampleEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = meta.reason;
        }
    }
}

control NoCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SampleDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(SampleParser(), NoVerify(), SampleIngress(), SampleEgress(), NoCompute(), SampleDeparser()) main;
