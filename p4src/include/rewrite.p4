// Egress: the replica id selects the shadow node; its replica gets the node's address and, for TCP, the stream position
// as its sequence number. The original (replica id 0) is not changed.
#ifndef CHECKMATE_REWRITE
#define CHECKMATE_REWRITE

control Rewrite(inout headers_t hdr, inout metadata_t meta) {
    DIRECT_COUNTER shadow_counter;

    @name(".to_shadow")
    action to_shadow(mac_addr_t mac, ipv4_addr_t ip, bit<16> base_port) {
        shadow_counter.count();
        hdr.ethernet.dst_addr = mac;
        meta.shadow_ip = ip;
        meta.shadow_port = base_port + meta.flow_id;
        meta.rewritten = meta.replica_tcp;
    }

    @name(".drop_unknown_replica")
    action drop_unknown_replica() {
        meta.drop = 1;
    }

    @name(".shadow")
    table shadow {
        key = { meta.rid: exact @name("rid"); }
        actions = { to_shadow; @defaultonly drop_unknown_replica; }
        const default_action = drop_unknown_replica();
        counters = shadow_counter;
        size = MAX_SHADOWS;
    }

    apply {
        if (meta.rid != 0) {
            shadow.apply();
            if (meta.rewritten == 1) {
                // The TCP checksum is updated from the changed fields only, never computed over the payload: a
                // payload that was corrupted before the switch must still fail its checksum at the shadow.
                meta.not_ipv4_checksum = ~hdr.ipv4.checksum;
                meta.not_tcp_checksum = ~hdr.tcp.checksum;
                meta.not_dst_addr = ~hdr.ipv4.dst_addr;
                meta.not_dst_port = ~hdr.tcp.dst_port;
                meta.not_seq = ~hdr.tcp.seq;
                hdr.ipv4.dst_addr = meta.shadow_ip;
                hdr.tcp.dst_port = meta.shadow_port;
                hdr.tcp.seq = meta.position;
            }
        }
    }
}

#endif
