// The whole ingress decision: forward, then replicate what is tagged.
#ifndef CHECKMATE_DECIDE
#define CHECKMATE_DECIDE

control Decide(in headers_t hdr, inout metadata_t meta) {
    Forward() forward;
    ReplicateTcp() replicate_tcp;
    ReplicateRdma() replicate_rdma;

    apply {
        meta.reason = REASON_NONE;
        forward.apply(hdr, meta);
        if (meta.drop == 0 && meta.flooded == 0) {
            if (hdr.tcp.isValid()) {
                replicate_tcp.apply(hdr, meta);
            } else if (hdr.bth.isValid()) {
                replicate_rdma.apply(hdr, meta);
            } else if (hdr.ipv4.isValid() && hdr.ipv4.protocol == PROTOCOL_TCP) {
                meta.reason = REASON_UNSUPPORTED_HEADER;
            }
        }
    }
}

#endif
