// Tables of every match kind, constant entries, hit and miss, switch on the action; each result goes into a byte.
#include "common.p4"

header probe_t {
    bit<32> a;
    bit<16> b;
    bit<8>  c;
    bit<8>  exact_result;
    bit<8>  lpm_result;
    bit<8>  ternary_result;
    bit<8>  range_result;
    bit<8>  optional_result;
    bit<8>  const_result;
    bit<8>  flow_result;
}
header tail_t { bit<8> value; }

struct headers_t { probe_t probe; tail_t tail; }
struct metadata_t { bit<8> hits; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.probe);
        transition select(hdr.probe.c) {
            0xff : tail;
            default : accept;
        }
    }
    state tail {
        packet.extract(hdr.tail);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) exact_counter;

    action set_exact(bit<8> value) { hdr.probe.exact_result = value; exact_counter.count(); }
    action set_lpm(bit<8> value) { hdr.probe.lpm_result = value; }
    action set_ternary(bit<8> value) { hdr.probe.ternary_result = value; }
    action set_range(bit<8> value) { hdr.probe.range_result = value; }
    action set_optional(bit<8> value) { hdr.probe.optional_result = value; }
    action set_const(bit<8> value) { hdr.probe.const_result = value; }
    action red() { meta.hits = meta.hits + 1; }
    action green(bit<8> value) { meta.hits = value; }
    action miss_exact() { hdr.probe.exact_result = 0xee; exact_counter.count(); }

    table exact_table {
        key = { hdr.probe.a : exact; hdr.probe.b : exact; }
        actions = { set_exact; miss_exact; }
        default_action = miss_exact();
        counters = exact_counter;
        size = 4;
    }
    table lpm_table {
        key = { hdr.probe.c : exact; hdr.probe.a : lpm; }
        actions = { set_lpm; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table ternary_table {
        key = { hdr.probe.a : ternary; hdr.probe.b : ternary; hdr.tail.isValid() : exact; hdr.tail.value : ternary; }
        actions = { set_ternary; NoAction; }
        default_action = set_ternary(0x77);
        size = 64;
    }
    table range_table {
        key = { hdr.probe.b : range; hdr.probe.c : ternary; }
        actions = { set_range; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table optional_table {
        key = { hdr.probe.b : optional; hdr.probe.c : optional; }
        actions = { set_optional; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table const_table {
        key = { hdr.probe.b : ternary; }
        actions = { set_const; }
        const entries = {
            0x0100 &&& 0xff00 : set_const(1);
            0x0102 : set_const(2);
            0x0000 &&& 0x0001 : set_const(3);
            _ : set_const(4);
        }
        default_action = set_const(9);
    }
    table colour_table {
        key = { hdr.probe.c : exact; }
        actions = { red; green; NoAction; }
        default_action = NoAction();
    }
    table always { actions = { green; NoAction; } default_action = green(3); }

    apply {
        hdr.probe.flow_result = 0;
        if (exact_table.apply().hit) {
            hdr.probe.flow_result[0:0] = 1;
        }
        if (lpm_table.apply().miss) {
            hdr.probe.flow_result[1:1] = 1;
        }
        ternary_table.apply();
        range_table.apply();
        optional_table.apply();
        const_table.apply();
        always.apply();
        switch (colour_table.apply().action_run) {
            red : { hdr.probe.flow_result[4:4] = 1; }
            green : { hdr.probe.flow_result[5:5] = 1; }
            default : { hdr.probe.flow_result[6:6] = 1; }
        }
        hdr.probe.flow_result[7:7] = meta.hits[0:0];
        standard_metadata.egress_spec = 1;
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.probe); packet.emit(hdr.tail); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
