// Decisions of the shared controls. A shim per architecture copies ports, group, rid and drop from and to the target.
#ifndef CHECKMATE_METADATA
#define CHECKMATE_METADATA

typedef bit<9> port_id_t;
typedef bit<16> group_id_t;  // multicast group, 0 is none
typedef bit<16> rid_t;       // replica id: 0 is the original, others identify a shadow node
typedef bit<16> flow_id_t;
typedef bit<8> reason_t;     // why a packet is not replicated: index of a counter
typedef bit<16> connection_t;

// Verdict of the connection memory on a segment's source port.
const connection_t CONNECTION_UNKNOWN = 0;  // no connection of the flow has been seen
const connection_t CONNECTION_NEWEST = 1;
const connection_t CONNECTION_LATE = 2;     // not the newest one

// Sent to the controller for every new connection.
struct flow_start_t {
    flow_id_t flow_id;
    bit<32> isn;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
    bit<16> src_port;
    bit<16> dst_port;
}

// Initially zero: no reason, no group, nothing to do.
struct metadata_t {
    port_id_t ingress_port;
    port_id_t egress_port;  // of a unicast packet
    group_id_t group;       // of a flooded or replicated packet
    rid_t rid;              // known in egress
    bit<1> drop;
    bit<1> flooded;
    reason_t reason;
    bit<1> flow_started;    // notify the controller
    bit<1> replica_tcp;     // replicas of this packet get the shadow's address, port and stream position
    flow_id_t flow_id;
    group_id_t replica_group;
    connection_t connection;
    bit<32> isn;            // of the newest connection
    bit<32> base_isn;       // of the connection, from flow_base
    bit<1> base_known;
    bit<32> position;       // sequence number relative to the ISN
    ipv4_addr_t shadow_ip;
    bit<16> shadow_port;
    bit<1> rewritten;       // the replica's fields, and therefore its checksums, change
    // Complements of the rewritten fields (RFC 1624: HC' = ~(~HC + ~m + m')).
    bit<16> not_ipv4_checksum;
    bit<16> not_tcp_checksum;
    bit<32> not_dst_addr;
    bit<16> not_dst_port;
    bit<32> not_seq;
}

#endif
