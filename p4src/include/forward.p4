// The complete ingress decision. Layer 2: known unicast to its port (and replicated if tagged), broadcast and multicast
// to the flood group. Packets from shadows are dropped.
#ifndef CHECKMATE_FORWARD
#define CHECKMATE_FORWARD

control Forward(in headers_t hdr, inout metadata_t meta) {
    Replicate() replicate;

    @name(".drop_from_shadow")
    action drop_from_shadow() {
        meta.drop = 1;
        meta.reason = REASON_FROM_SHADOW;
    }

    @name(".shadow_ports")
    table shadow_ports {
        key = { meta.ingress_port: exact @name("ingress_port"); }
        actions = { drop_from_shadow; @defaultonly NoAction; }
        const default_action = NoAction();
        size = MAX_SHADOWS;
    }

    @name(".set_port")
    action set_port(port_id_t port) {
        meta.egress_port = port;
    }

    @name(".drop_unknown")
    action drop_unknown() {
        meta.drop = 1;
        meta.reason = REASON_UNKNOWN_DESTINATION;
    }

    @name(".l2_forward")
    table l2_forward {
        key = { hdr.ethernet.dst_addr: exact @name("dst_addr"); }
        actions = { set_port; @defaultonly drop_unknown; }
        const default_action = drop_unknown();
        size = MAX_HOSTS;
    }

    apply {
        if (!shadow_ports.apply().hit) {
            if (!hdr.ethernet.isValid()) {
                drop_unknown();
            } else if (hdr.ethernet.dst_addr[40:40] == 1) {
                meta.group = FLOOD_GROUP;
                meta.flooded = 1;
            } else if (l2_forward.apply().hit) {
                // Nested, not controlled by flags: hardware then looks up the replication tables in parallel.
                replicate.apply(hdr, meta);
            }
        }
    }
}

#endif
