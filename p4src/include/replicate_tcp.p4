// Tagged TCP segments: their flow and position in its stream. ConnectionMemory is specific to the architecture (registers
// differ); it remembers ISN and source port of each flow's newest connection, and recognizes its segments.
#ifndef CHECKMATE_REPLICATE_TCP
#define CHECKMATE_REPLICATE_TCP

control ReplicateTcp(in headers_t hdr, inout metadata_t meta) {
    ConnectionMemory() memory;
    DIRECT_COUNTER replicate_counter;

    @name(".replicate_flow")
    action replicate_flow(flow_id_t flow_id, group_id_t group) {
        meta.flow_id = flow_id;
        meta.replica_group = group;
        replicate_counter.count();
    }

    @name(".replicate")
    table replicate {
        key = {
            hdr.ipv4.src_addr: exact @name("src_addr");
            hdr.ipv4.dst_addr: exact @name("dst_addr");
            hdr.tcp.dst_port: exact @name("dst_port");
            hdr.ipv4.dscp: exact @name("dscp");
        }
        actions = { replicate_flow; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = replicate_counter;
        size = MAX_FLOWS;
    }

    @name(".set_isn")
    action set_isn(bit<32> isn) {
        meta.base_isn = isn;
        meta.base_known = 1;
    }

    // Connections whose SYN this switch did not see (restart, failover). The source port is part of the key, so that an
    // old entry never matches a new connection.
    @name(".flow_base")
    table flow_base {
        key = {
            meta.flow_id: exact @name("flow_id");
            hdr.tcp.src_port: exact @name("src_port");
        }
        actions = { set_isn; @defaultonly NoAction; }
        const default_action = NoAction();
        size = MAX_FLOWS;
    }

    @hidden
    action replicate_from(bit<32> isn) {
        meta.position = hdr.tcp.seq - isn;
        meta.replica_tcp = 1;
        meta.group = meta.replica_group;
    }

    apply {
        if (!replicate.apply().hit) {
            meta.reason = REASON_UNTAGGED;
        } else if (meta.replica_group == 0) {
            meta.reason = REASON_NO_GROUP;
        } else {
            // Both are looked up, in parallel in hardware; the first result that is known is used.
            flow_base.apply();
            memory.apply(hdr, meta);
            if (meta.connection == CONNECTION_NEWEST) {
                replicate_from(meta.isn);
            } else if (meta.connection == CONNECTION_LATE) {
                meta.reason = REASON_LATE_CONNECTION;
            } else if (meta.base_known == 1) {
                replicate_from(meta.base_isn);
            } else {
                meta.reason = REASON_UNKNOWN_ISN;
            }
        }
    }
}

#endif
