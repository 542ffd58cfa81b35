// Replication of a unicast packet to a known destination: replicas, or the reason why there are none.
#ifndef CHECKMATE_REPLICATE
#define CHECKMATE_REPLICATE

control Replicate(in headers_t hdr, inout metadata_t meta) {
    ReplicateTcp() replicate_tcp;
    ReplicateRdma() replicate_rdma;

    apply {
        if (hdr.tcp.isValid()) {
            replicate_tcp.apply(hdr, meta);
        } else if (hdr.bth.isValid()) {
            replicate_rdma.apply(hdr, meta);
        } else if (hdr.ipv4.isValid() && hdr.ipv4.protocol == PROTOCOL_TCP) {
            meta.reason = REASON_UNSUPPORTED_HEADER;
        }
    }
}

#endif
