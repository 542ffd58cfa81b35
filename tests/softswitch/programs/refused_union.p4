// Refused at load: a header union.
#include "common.p4"

header x_t { bit<8> x; }
header y_t { bit<16> y; }
header_union u_t { x_t x; y_t y; }
header h_t { bit<8> a; bit<8> b; }

struct headers_t { h_t h; u_t u; }
struct metadata_t { }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.h);
        packet.extract(hdr.u.x);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.h); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
