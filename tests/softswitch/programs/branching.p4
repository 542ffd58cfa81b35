// Control flow: returns in the middle, exit, conditions inside actions, branches that share what follows.
#include "common.p4"

header trace_t {
    bit<8>  input;
    bit<8>  mode;
    bit<16> trace;
}

struct headers_t { trace_t trace; }
struct metadata_t { bit<8> level; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.trace);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action mark(bit<16> bits) { hdr.trace.trace = hdr.trace.trace | bits; }
    action classify() {
        if (hdr.trace.input < 10) {
            meta.level = 1;
            if (hdr.trace.input == 3) {
                meta.level = 2;
                return;
            }
            hdr.trace.trace[0:0] = 1;
        } else {
            if (hdr.trace.input > 200) {
                meta.level = 3;
                return;
            } else {
                meta.level = 4;
            }
            hdr.trace.trace[1:1] = 1;
        }
        hdr.trace.trace[2:2] = 1;
    }
    action leave() {
        hdr.trace.trace[15:15] = 1;
        exit;
    }
    action maybe_leave() {
        if (hdr.trace.input == 77) {
            hdr.trace.trace[14:14] = 1;
            exit;
        }
        hdr.trace.trace[13:13] = 1;
    }
    table modes {
        key = { hdr.trace.mode : exact; }
        actions = { mark; classify; leave; maybe_leave; NoAction; }
        const entries = {
            1 : mark(0x0800); 2 : classify(); 3 : leave(); 4 : maybe_leave(); 5 : mark(0x0400);
        }
        const default_action = NoAction();
    }
    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.trace.mode == 0xf0) {
            if (hdr.trace.input[0:0] == 1) {
                hdr.trace.trace = 0x0101;
                return;
            }
            hdr.trace.trace[4:4] = 1;
        }
        if (hdr.trace.mode == 0xf1) {
            exit;
        }
        switch (modes.apply().action_run) {
            mark : { hdr.trace.trace[5:5] = 1; }
            classify : { if (meta.level == 2) { return; } hdr.trace.trace[6:6] = 1; }
        }
        if (hdr.trace.input > 100) {
            if (hdr.trace.mode > 100) {
                hdr.trace.trace[7:7] = 1;
            } else {
                hdr.trace.trace[8:8] = 1;
                if (hdr.trace.input == 150) { return; }
            }
        }
        hdr.trace.trace[9:9] = 1;
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { hdr.trace.trace[12:12] = 1; }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.trace); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), TestEgress(), NoCompute(), TestDeparser()) main;
