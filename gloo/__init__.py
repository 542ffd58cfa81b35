"""Decodes what PyTorch's gloo backend sends: TCP streams to reduced gradients, of jobs that know nothing of it.

Pure: no sockets, clocks or threads. The wire format is read from the sources of pytorch/gloo (``gloo/transport/tcp``,
``gloo/allreduce.cc``, ``gloo/broadcast.cc``, ``gloo/allgather.cc``) and of PyTorch (``ProcessGroupGloo.cpp``,
``c10d/reducer.cpp``). Stages, each with immutable values for the next:

    packets -> `intake` -> bytes by position (`stream`) -> messages and gaps (`scan`) -> which message of its collective
    each one is (`count`) -> process groups (`mesh`) -> reduced and broadcast tensors (`collective`, with the arithmetic
    of `ring`) -> parameters, buckets and steps of DistributedDataParallel (`ddp`)

No message says which part of a tensor it carries: that follows from counting. What counting leaves open is missing,
with its reason, and never guessed.
"""
