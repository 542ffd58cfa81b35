// Every operator of expressions, on unsigned and signed operands, with results written into the packet.
#include "common.p4"

header operands_t {
    bit<8>  op;
    bit<32> a;
    bit<32> b;
    bit<8>  shift;
    bit<32> result;
    bit<8>  flag;
    int<16> sa;
    int<16> sb;
    int<16> sresult;
    bit<3>  x;
    bit<13> y;
    bit<48> wide;
}

struct headers_t { operands_t operands; }
struct metadata_t { }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action add() { hdr.operands.result = hdr.operands.a + hdr.operands.b; }
    action subtract() { hdr.operands.result = hdr.operands.a - hdr.operands.b; }
    action multiply() { hdr.operands.result = hdr.operands.a * hdr.operands.b; }
    action saturating_add() { hdr.operands.result = hdr.operands.a |+| hdr.operands.b; }
    action saturating_subtract() { hdr.operands.result = hdr.operands.a |-| hdr.operands.b; }
    action bit_and() { hdr.operands.result = hdr.operands.a & hdr.operands.b; }
    action bit_or() { hdr.operands.result = hdr.operands.a | hdr.operands.b; }
    action bit_xor() { hdr.operands.result = hdr.operands.a ^ hdr.operands.b; }
    action complement() { hdr.operands.result = ~hdr.operands.a; }
    action negate() { hdr.operands.result = -hdr.operands.a; }
    action shift_left() { hdr.operands.result = hdr.operands.a << hdr.operands.shift; }
    action shift_right() { hdr.operands.result = hdr.operands.a >> hdr.operands.shift; }
    action slice() { hdr.operands.result = 16w0 ++ hdr.operands.a[23:8]; }
    action slice_assign() { hdr.operands.result = hdr.operands.a; hdr.operands.result[15:8] = hdr.operands.shift; }
    action concat() { hdr.operands.result = hdr.operands.x ++ hdr.operands.y ++ hdr.operands.a[15:0]; }
    action choose() { hdr.operands.result = hdr.operands.a > hdr.operands.b ? hdr.operands.a : hdr.operands.b; }
    action compare() {
        hdr.operands.flag = (bit<8>)((bit<1>)(hdr.operands.a == hdr.operands.b)
            ++ (bit<1>)(hdr.operands.a != hdr.operands.b) ++ (bit<1>)(hdr.operands.a < hdr.operands.b)
            ++ (bit<1>)(hdr.operands.a <= hdr.operands.b) ++ (bit<1>)(hdr.operands.a > hdr.operands.b)
            ++ (bit<1>)(hdr.operands.a >= hdr.operands.b));
    }
    action logic() {
        hdr.operands.flag = (bit<8>)(bit<1>)((hdr.operands.a == 0 || hdr.operands.b == 0)
            && !(hdr.operands.shift == 0));
    }
    action signed_add() { hdr.operands.sresult = hdr.operands.sa + hdr.operands.sb; }
    action signed_subtract() { hdr.operands.sresult = hdr.operands.sa - hdr.operands.sb; }
    action signed_saturating_add() { hdr.operands.sresult = hdr.operands.sa |+| hdr.operands.sb; }
    action signed_saturating_subtract() { hdr.operands.sresult = hdr.operands.sa |-| hdr.operands.sb; }
    action signed_shift_right() { hdr.operands.sresult = hdr.operands.sa >> hdr.operands.shift; }
    action signed_compare() { hdr.operands.flag = (bit<8>)(bit<1>)(hdr.operands.sa < hdr.operands.sb); }
    action sign_extend() { hdr.operands.result = (bit<32>)(int<32>)hdr.operands.sa; }
    action narrow_add() { hdr.operands.x = hdr.operands.x + hdr.operands.y[2:0]; }
    action wide_multiply() { hdr.operands.wide = (bit<48>)hdr.operands.a * (bit<48>)hdr.operands.b; }
    action byte_swap() { hdr.operands.wide = hdr.operands.wide[7:0] ++ hdr.operands.wide[47:8]; }

    table operation {
        key = { hdr.operands.op : exact; }
        actions = {
            add; subtract; multiply; saturating_add; saturating_subtract; bit_and; bit_or; bit_xor; complement;
            negate; shift_left; shift_right; slice; slice_assign; concat; choose; compare; logic;
            signed_add; signed_subtract; signed_saturating_add; signed_saturating_subtract; signed_shift_right;
            signed_compare; sign_extend; narrow_add; wide_multiply; byte_swap; NoAction;
        }
        const entries = {
            0 : add(); 1 : subtract(); 2 : multiply(); 3 : saturating_add(); 4 : saturating_subtract();
            5 : bit_and(); 6 : bit_or(); 7 : bit_xor(); 8 : complement(); 9 : negate(); 10 : shift_left();
            11 : shift_right(); 13 : slice(); 14 : slice_assign(); 15 : concat();
            16 : choose(); 17 : compare(); 18 : logic(); 19 : signed_add(); 20 : signed_subtract();
            21 : signed_saturating_add(); 22 : signed_saturating_subtract(); 23 : signed_shift_right();
            24 : signed_compare(); 25 : sign_extend(); 26 : narrow_add(); 27 : wide_multiply(); 28 : byte_swap();
        }
        const default_action = NoAction();
    }
    apply {
        operation.apply();
        standard_metadata.egress_spec = 1;
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.operands); }
}

EMPTY_CONTROL(NoVerify, headers_t, metadata_t)
EMPTY_CONTROL(NoCompute, headers_t, metadata_t)
EMPTY_PIPELINE(NoEgress, headers_t, metadata_t)

V1Switch(TestParser(), NoVerify(), TestIngress(), NoEgress(), NoCompute(), TestDeparser()) main;
