// Registers, counters, digests, hashes and random numbers.
#include "common.p4"

header request_t {
    bit<8>  command;
    bit<8>  index;
    bit<24> value;
    bit<32> result;
}

struct headers_t { request_t request; }
struct metadata_t { bit<16> short_hash; }
struct sample_t { bit<8> index; bit<24> value; bit<9> port; bool big; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.request);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<24>>(10) cells;
    register<int<16>>(4) signed_cells;
    counter(10, CounterType.packets_and_bytes) seen;
    bit<24> cell;
    int<16> signed_cell;
    bit<16> hash16;
    bit<32> hash32;

    action read_cell() {
        cells.read(cell, (bit<32>)hdr.request.index);
        hdr.request.result = (bit<32>)cell;
    }
    action write_cell() { cells.write((bit<32>)hdr.request.index, hdr.request.value); }
    action add_to_cell() {
        @atomic {
            cells.read(cell, (bit<32>)hdr.request.index);
            cell = cell + hdr.request.value;
            cells.write((bit<32>)hdr.request.index, cell);
        }
        hdr.request.result = (bit<32>)cell;
    }
    action signed_cell_below() {
        signed_cells.read(signed_cell, 1);
        signed_cell = signed_cell - 1;
        signed_cells.write(1, signed_cell);
        hdr.request.result = (bit<32>)(int<32>)signed_cell;
    }
    action count() { seen.count((bit<32>)hdr.request.index); }
    action crc16() {
        hash(hash16, HashAlgorithm.crc16, 16w0, { hdr.request.index, hdr.request.value }, 32w0x10000);
        hdr.request.result = (bit<32>)hash16;
    }
    action crc32() {
        hash(hash32, HashAlgorithm.crc32, 32w0, { hdr.request.value, hdr.request.index }, 64w0x100000000);
        hdr.request.result = hash32;
    }
    action folded() {
        hash(hash16, HashAlgorithm.crc16, 16w100, { hdr.request.value }, 32w10);
        hdr.request.result = (bit<32>)hash16;
    }
    action checksum() {
        hash(hash16, HashAlgorithm.csum16, 16w0, { hdr.request.value, hdr.request.index, hdr.request.value },
             32w0x10000);
        hdr.request.result = (bit<32>)hash16;
    }
    action exclusive_or() {
        hash(hash16, HashAlgorithm.xor16, 16w0, { hdr.request.value }, 32w0x10000);
        hdr.request.result = (bit<32>)hash16;
    }
    action same() {
        hash(hash32, HashAlgorithm.identity, 32w0, { hdr.request.value }, 64w0x100000000);
        hdr.request.result = hash32;
    }
    action draw() { random(hdr.request.result, 10, 20); }
    action report() {
        digest<sample_t>(1, { hdr.request.index, hdr.request.value, standard_metadata.ingress_port,
                              hdr.request.value > 1000 });
    }

    table operation {
        key = { hdr.request.command : exact; }
        actions = {
            read_cell; write_cell; add_to_cell; signed_cell_below; count; crc16; crc32; folded; checksum;
            exclusive_or; same; draw; report; NoAction;
        }
        const entries = {
            0 : read_cell(); 1 : write_cell(); 2 : add_to_cell(); 3 : signed_cell_below(); 4 : count();
            5 : crc16(); 6 : crc32(); 7 : folded(); 8 : checksum(); 9 : exclusive_or(); 10 : same(); 11 : draw();
            12 : report();
        }
        const default_action = NoAction();
    }
    apply {
        operation.apply();
        standard_metadata.egress_spec = 1;
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.request); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
