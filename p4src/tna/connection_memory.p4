// ISN and source port of each flow's newest connection, in registers: one stateful operation each a packet.
#ifndef CHECKMATE_CONNECTION_MEMORY
#define CHECKMATE_CONNECTION_MEMORY

// Sets meta.isn, and meta.reason to NONE when it is known, else to UNKNOWN_ISN or LATE_CONNECTION.
control ConnectionMemory(in headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, flow_id_t>(MAX_FLOWS) isn_of_flow;
    Register<bit<16>, flow_id_t>(MAX_FLOWS) port_of_flow;  // 0: no connection seen

    RegisterAction<bit<32>, flow_id_t, bit<32>>(isn_of_flow) remember_isn = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = hdr.tcp.seq;
            result = value;
        }
    };
    RegisterAction<bit<32>, flow_id_t, bit<32>>(isn_of_flow) recall_isn = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };
    RegisterAction<bit<16>, flow_id_t, bit<16>>(port_of_flow) remember_port = {
        void apply(inout bit<16> value, out bit<16> result) {
            value = hdr.tcp.src_port;
            result = value;
        }
    };
    RegisterAction<bit<16>, flow_id_t, bit<16>>(port_of_flow) recall_port = {
        void apply(inout bit<16> value, out bit<16> result) {
            result = value;
        }
    };
    bit<16> known_port;
    bit<16> difference;

    apply {
        if (hdr.tcp.syn == 1 && hdr.tcp.ack_flag == 0) {
            meta.isn = remember_isn.execute(meta.flow_id);
            known_port = remember_port.execute(meta.flow_id);
            meta.flow_started = 1;
        } else {
            meta.isn = recall_isn.execute(meta.flow_id);
            known_port = recall_port.execute(meta.flow_id);
        }
        difference = known_port ^ hdr.tcp.src_port;  // conditions compare with constants
        if (known_port == 0) {
            meta.reason = REASON_UNKNOWN_ISN;
        } else if (difference != 0) {
            meta.reason = REASON_LATE_CONNECTION;
        }
    }
}

#endif
