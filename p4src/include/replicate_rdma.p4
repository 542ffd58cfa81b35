// RoCEv2 packets by queue pair. Only the MAC address of a replica is rewritten: the iCRC covers the IP header.
#ifndef CHECKMATE_REPLICATE_RDMA
#define CHECKMATE_REPLICATE_RDMA

control ReplicateRdma(in headers_t hdr, inout metadata_t meta) {
    DIRECT_COUNTER replicate_rdma_ipv4_counter;
    DIRECT_COUNTER replicate_rdma_ipv6_counter;

    @name(".replicate_qp_ipv4")
    action replicate_qp_ipv4(group_id_t group) {
        meta.group = group;
        replicate_rdma_ipv4_counter.count();
    }

    @name(".replicate_qp_ipv6")
    action replicate_qp_ipv6(group_id_t group) {
        meta.group = group;
        replicate_rdma_ipv6_counter.count();
    }

    @name(".replicate_rdma_ipv4")
    table replicate_rdma_ipv4 {
        key = {
            hdr.ipv4.src_addr: exact @name("src_addr");
            hdr.ipv4.dst_addr: exact @name("dst_addr");
            hdr.bth.destination_qp: exact @name("destination_qp");
        }
        actions = { replicate_qp_ipv4; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = replicate_rdma_ipv4_counter;
        size = MAX_RDMA_FLOWS;
    }

    @name(".replicate_rdma_ipv6")
    table replicate_rdma_ipv6 {
        key = {
            hdr.ipv6.src_addr: exact @name("src_addr");
            hdr.ipv6.dst_addr: exact @name("dst_addr");
            hdr.bth.destination_qp: exact @name("destination_qp");
        }
        actions = { replicate_qp_ipv6; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = replicate_rdma_ipv6_counter;
        size = MAX_RDMA_FLOWS;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            replicate_rdma_ipv4.apply();
        } else {
            replicate_rdma_ipv6.apply();
        }
    }
}

#endif
