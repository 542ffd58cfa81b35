// Parser: select with masks and several keys, lookahead, varbit, a header stack with a loop, advance, verify, errors.
#include "common.p4"

error { BadVersion }

header start_t {
    bit<4>  version;
    bit<12> kind;
    bit<8>  seen_error;
    bit<8>  seen_labels;
    bit<8>  peeked;
}
header label_t {
    bit<20> label;
    bit<3>  class;
    bit<1>  bottom;
    bit<8>  ttl;
}
header options_t {
    bit<8>       length;
    varbit<320>  data;
    bit<16>      trailer;
}
header leaf_t { bit<16> tag; }
header other_t { bit<8> first; bit<8> second; }

struct headers_t {
    start_t    head;
    label_t[3] labels;
    options_t  options;
    leaf_t     leaf;
    other_t    other;
}
struct metadata_t { bit<8> peeked; bit<32> last_label; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.head);
        verify(hdr.head.version != 15, error.BadVersion);
        transition select(hdr.head.version, hdr.head.kind) {
            (1, 0x001) : labels;
            (1, 0x002) : options;
            (2, 0x010 &&& 0x0f0) : leaf;
            (3, _) : peek;
            (4, _) : skip;
            (5, 0x100 .. 0x103) : other;
            default : accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.bottom) {
            0 : labels;
            1 : leaf;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>)packet.lookahead<bit<8>>() << 3);
        transition leaf;
    }
    state peek {
        meta.peeked = packet.lookahead<bit<8>>();
        transition select(packet.lookahead<bit<16>>()) {
            0xaa00 &&& 0xff00 : other;
            default : leaf;
        }
    }
    state skip {
        packet.advance(16);
        transition leaf;
    }
    state leaf {
        packet.extract(hdr.leaf);
        transition accept;
    }
    state other {
        packet.extract(hdr.other);
        transition leaf;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.head.peeked = meta.peeked;
        if (standard_metadata.parser_error == error.PacketTooShort) {
            hdr.head.seen_error = 1;
        } else if (standard_metadata.parser_error == error.BadVersion) {
            hdr.head.seen_error = 2;
        } else if (standard_metadata.parser_error == error.StackOutOfBounds) {
            hdr.head.seen_error = 3;
        } else if (standard_metadata.parser_error == error.HeaderTooShort) {
            hdr.head.seen_error = 4;
        } else if (standard_metadata.parser_error != error.NoError) {
            hdr.head.seen_error = 0xff;
        }
        if (hdr.labels[0].isValid()) {
            hdr.head.seen_labels = hdr.head.seen_labels + 1;
            hdr.labels[0].ttl = hdr.labels[0].ttl - 1;
        }
        if (hdr.labels[1].isValid()) { hdr.head.seen_labels = hdr.head.seen_labels + 1; }
        if (hdr.labels[2].isValid()) { hdr.head.seen_labels = hdr.head.seen_labels + 1; }
        if (hdr.options.isValid()) { hdr.options.trailer = hdr.options.trailer + 1; }
        standard_metadata.egress_spec = 1;
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.head);
        packet.emit(hdr.labels);
        packet.emit(hdr.options);
        packet.emit(hdr.other);
        packet.emit(hdr.leaf);
    }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
