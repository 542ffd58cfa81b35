"""Puts bytes of streams where they belong, by their position, and proves them: the one engine for live and replay.

Pure: no sockets, clocks, threads or torch. `placement.assembler` collects the steps of one incarnation of a group in
preallocated memory (`placement.slots`). What arrives as nearly everything does, each byte right behind the bytes that
are there, is placed by `placement.kernel` over arrays, where compiled kernels are loaded. Everything else (holes,
copies that differ, damage) goes through `placement.frames`, one segment at a time: that is also the reference that
defines what the kernel must do.
"""
