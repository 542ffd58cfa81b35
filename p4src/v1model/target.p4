// What differs between architectures and is named by the shared controls: v1model's side.
#ifndef CHECKMATE_TARGET
#define CHECKMATE_TARGET

#define DIRECT_COUNTER direct_counter(CounterType.packets_and_bytes)

#endif
