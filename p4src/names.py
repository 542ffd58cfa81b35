"""Names of the compiled data plane. Generated from the P4Info by `make p4`; do not edit."""

from __future__ import annotations

from enum import StrEnum


class Table(StrEnum):
    """Tables."""

    REPLICATE = "replicate"
    FLOW_BASE = "flow_base"
    REPLICATE_RDMA_IPV4 = "replicate_rdma_ipv4"
    REPLICATE_RDMA_IPV6 = "replicate_rdma_ipv6"
    SHADOW_PORTS = "shadow_ports"
    L2_FORWARD = "l2_forward"
    SHADOW = "shadow"


class MatchField(StrEnum):
    """Keys of tables."""

    SRC_ADDR = "src_addr"
    DST_ADDR = "dst_addr"
    DST_PORT = "dst_port"
    DSCP = "dscp"
    FLOW_ID = "flow_id"
    SRC_PORT = "src_port"
    DESTINATION_QP = "destination_qp"
    INGRESS_PORT = "ingress_port"
    RID = "rid"


class Action(StrEnum):
    """Actions."""

    NOACTION = "NoAction"
    REPLICATE_FLOW = "replicate_flow"
    SET_ISN = "set_isn"
    REPLICATE_QP_IPV4 = "replicate_qp_ipv4"
    REPLICATE_QP_IPV6 = "replicate_qp_ipv6"
    DROP_FROM_SHADOW = "drop_from_shadow"
    SET_PORT = "set_port"
    DROP_UNKNOWN = "drop_unknown"
    TO_SHADOW = "to_shadow"
    DROP_UNKNOWN_REPLICA = "drop_unknown_replica"


class Param(StrEnum):
    """Parameters of actions."""

    FLOW_ID = "flow_id"
    GROUP = "group"
    ISN = "isn"
    PORT = "port"
    MAC = "mac"
    IP = "ip"
    BASE_PORT = "base_port"


class Counter(StrEnum):
    """Indirect counters."""

    NOT_REPLICATED = "not_replicated"


class Digest(StrEnum):
    """Digests."""

    FLOW_START_T = "flow_start_t"
