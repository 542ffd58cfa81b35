// ISN and source port of each flow's newest connection, in registers.
#ifndef CHECKMATE_CONNECTION_MEMORY
#define CHECKMATE_CONNECTION_MEMORY

// Sets meta.connection and meta.isn.
control ConnectionMemory(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(MAX_FLOWS) isn_of_flow;
    register<bit<16>>(MAX_FLOWS) port_of_flow;  // 0: no connection seen
    bit<16> known_port;

    apply {
        @atomic {
            if (hdr.tcp.syn == 1 && hdr.tcp.ack_flag == 0) {
                isn_of_flow.write((bit<32>)meta.flow_id, hdr.tcp.seq);
                port_of_flow.write((bit<32>)meta.flow_id, hdr.tcp.src_port);
                meta.isn = hdr.tcp.seq;
                meta.connection = CONNECTION_NEWEST;
                meta.flow_started = 1;
            } else {
                isn_of_flow.read(meta.isn, (bit<32>)meta.flow_id);
                port_of_flow.read(known_port, (bit<32>)meta.flow_id);
                if (known_port == 0) {
                    meta.connection = CONNECTION_UNKNOWN;
                } else if (known_port == hdr.tcp.src_port) {
                    meta.connection = CONNECTION_NEWEST;
                } else {
                    meta.connection = CONNECTION_LATE;
                }
            }
        }
    }
}

#endif
