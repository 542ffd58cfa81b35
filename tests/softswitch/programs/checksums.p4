// IPv4 header checksum, and the UDP checksum over the payload, verified and updated; an optional tag in between.
#include "common.p4"

header ethernet_t { bit<48> destination; bit<48> source; bit<16> type; }
header tag_t { bit<8> value; bit<8> bad; }
header odd_t { bit<8> value; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> length; bit<16> id; bit<3> flags; bit<13> fragment;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> source; bit<32> destination;
}
header options_t { varbit<320> data; }
header udp_t { bit<16> source; bit<16> destination; bit<16> length; bit<16> checksum; }
header note_t { bit<16> sum; }

struct headers_t {
    ethernet_t ethernet; tag_t tag; odd_t odd; ipv4_t ipv4; options_t options; udp_t udp; note_t note;
}
struct metadata_t { bit<16> zero; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800 : ipv4;
            0x9000 : tag;
            0x9001 : odd;
            default : accept;
        }
    }
    state tag {
        packet.extract(hdr.tag);
        transition ipv4;
    }
    state odd {
        packet.extract(hdr.odd);
        transition ipv4;
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.ihl >= 5, error.HeaderTooShort);
        packet.extract(hdr.options, (bit<32>)(hdr.ipv4.ihl - 5) << 5);
        transition select(hdr.ipv4.protocol) {
            17 : udp;
            default : accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition accept;
    }
}

control TestVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags,
              hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination,
              hdr.options.data },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action forward(bit<9> port, bit<48> mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action drop() { mark_to_drop(standard_metadata); }
    direct_counter(CounterType.packets_and_bytes) routes_counter;
    table routes {
        key = { hdr.ipv4.destination : lpm; }
        actions = { forward; drop; }
        default_action = drop();
        counters = routes_counter;
        size = 16;
    }
    apply {
        if (standard_metadata.checksum_error == 1) {
            hdr.tag.bad = 1;
            standard_metadata.egress_spec = 9;
        } else if (hdr.ipv4.isValid()) {
            routes.apply();
        } else {
            standard_metadata.egress_spec = 8;
        }
        if (hdr.udp.isValid() && hdr.udp.destination == 7) {
            hdr.note.setValid();
        }
    }
}

control TestCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags,
              hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination,
              hdr.options.data },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0,
            { hdr.ipv4.source, hdr.ipv4.destination, 8w0, hdr.ipv4.protocol, hdr.udp.length, hdr.udp.source,
              hdr.udp.destination, hdr.udp.length },
            hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.note.isValid(), { hdr.odd.value, hdr.tag.value, hdr.ethernet.type },
            hdr.note.sum, HashAlgorithm.csum16);
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.note);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tag);
        packet.emit(hdr.odd);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.options);
        packet.emit(hdr.udp);
    }
}

EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), TestVerify(), TestIngress(), NoEgress(), TestCompute(), TestDeparser()) main;
