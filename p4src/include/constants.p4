// Generated from p4src/constants.py by `make p4`; do not edit.
#ifndef CHECKMATE_CONSTANTS
#define CHECKMATE_CONSTANTS

#define MAX_FLOWS 1024
#define MAX_HOSTS 1024
#define MAX_SHADOWS 256
#define MAX_RDMA_FLOWS 1024
const group_id_t FLOOD_GROUP = 32766;
#define REASONS 8
const reason_t REASON_NONE = 0;
const reason_t REASON_UNTAGGED = 1;
const reason_t REASON_UNKNOWN_ISN = 2;
const reason_t REASON_LATE_CONNECTION = 3;
const reason_t REASON_NO_GROUP = 4;
const reason_t REASON_UNSUPPORTED_HEADER = 5;
const reason_t REASON_FROM_SHADOW = 6;
const reason_t REASON_UNKNOWN_DESTINATION = 7;

#endif
