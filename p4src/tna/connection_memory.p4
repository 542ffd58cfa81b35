// ISN and source port of each flow's newest connection, in registers: one stateful operation each per packet.
#ifndef CHECKMATE_CONNECTION_MEMORY
#define CHECKMATE_CONNECTION_MEMORY

// The comparison is made where the port is stored: a condition of the pipeline compares with constants only.
struct remembered_t {
    bit<16> port;          // 0: no connection seen
    connection_t verdict;  // on the last packet
}

// Sets meta.connection and meta.isn.
control ConnectionMemory(in headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, flow_id_t>(MAX_FLOWS) isn_of_flow;
    Register<remembered_t, flow_id_t>(MAX_FLOWS) connection_of_flow;

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
    RegisterAction<remembered_t, flow_id_t, connection_t>(connection_of_flow) begin_connection = {
        void apply(inout remembered_t value, out connection_t result) {
            value.port = hdr.tcp.src_port;
            value.verdict = CONNECTION_NEWEST;
            result = value.verdict;
        }
    };
    RegisterAction<remembered_t, flow_id_t, connection_t>(connection_of_flow) judge_connection = {
        void apply(inout remembered_t value, out connection_t result) {
            if (value.port != 0 && value.port == hdr.tcp.src_port) {
                value.verdict = CONNECTION_NEWEST;
            } else if (value.port != 0) {
                value.verdict = CONNECTION_LATE;
            }
            result = value.verdict;
        }
    };
    apply {
        if (hdr.tcp.syn == 1 && hdr.tcp.ack_flag == 0) {
            meta.isn = remember_isn.execute(meta.flow_id);
            meta.connection = begin_connection.execute(meta.flow_id);
            meta.flow_started = 1;
        } else {
            meta.isn = recall_isn.execute(meta.flow_id);
            meta.connection = judge_connection.execute(meta.flow_id);
        }
    }
}

#endif
