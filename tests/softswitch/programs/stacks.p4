// Header stacks and copies of headers in the controls: push, pop, run-time index, assignment, validity.
#include "common.p4"

header order_t { bit<8> command; bit<8> index; bit<8> value; bit<8> count; }
header item_t { bit<7> value; bit<1> last; }

struct headers_t { order_t order; item_t[4] items; item_t[4] copy; item_t single; }
struct metadata_t { bit<32> position; }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.count) {
            0 : accept;
            default : items;
        }
    }
    state items {
        packet.extract(hdr.items.next);
        meta.position = hdr.items.lastIndex;
        transition select(hdr.items.last.last) {
            1 : accept;
            default : items;
        }
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action push_one() {
        hdr.items.push_front(1);
        hdr.items[0].setValid();
        hdr.items[0] = { hdr.order.value[6:0], 0 };
    }
    action push_two() { hdr.items.push_front(2); }
    action pop_one() { hdr.items.pop_front(1); }
    action pop_three() { hdr.items.pop_front(3); }
    action write_at() { hdr.items[hdr.order.index].value = hdr.order.value[6:0]; }
    action read_at() { hdr.order.value = (bit<8>)hdr.items[hdr.order.index].value; }
    action copy_stack() { hdr.copy = hdr.items; }
    action copy_header() { hdr.single = hdr.items[1]; }
    action swap() {
        item_t temporary = hdr.items[0];
        hdr.items[0] = hdr.items[1];
        hdr.items[1] = temporary;
    }
    action invalidate() { hdr.items[0].setInvalid(); }
    action revive() { hdr.items[0].setInvalid(); hdr.items[0].setValid(); hdr.items[0].value = 0x55; }
    action last_index() { hdr.order.value = (bit<8>)meta.position; }
    table operation {
        key = { hdr.order.command : exact; }
        actions = {
            push_one; push_two; pop_one; pop_three; write_at; read_at; copy_stack; copy_header; swap; invalidate;
            revive; last_index; NoAction;
        }
        const entries = {
            0 : push_one(); 1 : push_two(); 2 : pop_one(); 3 : pop_three(); 4 : write_at(); 5 : read_at();
            6 : copy_stack(); 7 : copy_header(); 8 : swap(); 9 : invalidate(); 10 : revive(); 11 : last_index();
        }
        const default_action = NoAction();
    }
    apply {
        operation.apply();
        standard_metadata.egress_spec = 1;
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.order);
        packet.emit(hdr.items);
        packet.emit(hdr.copy);
        packet.emit(hdr.single);
    }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
