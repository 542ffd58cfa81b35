// A table with idle timeout: it loads, and takes entries without one.
#include "common.p4"

header h_t { bit<8> a; bit<8> b; }

struct headers_t { h_t h; }
struct metadata_t { }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.h);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set(bit<8> value) { hdr.h.b = value; }
    table t {
        key = { hdr.h.a : exact; }
        actions = { set; NoAction; }
        default_action = NoAction();
        support_timeout = true;
    }
    apply { t.apply(); }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.h); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
