// Architecture-specific definitions used by the shared controls: v1model.
#ifndef CHECKMATE_TARGET
#define CHECKMATE_TARGET

#define DIRECT_COUNTER direct_counter(CounterType.packets_and_bytes)

#endif
