// Architecture-specific definitions used by the shared controls: TNA (Tofino 1 and 2).
#ifndef CHECKMATE_TARGET
#define CHECKMATE_TARGET

#define DIRECT_COUNTER DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES)

#endif
