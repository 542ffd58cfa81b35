"""Packet capture: files (pcap and pcapng, as streams of batches; writing them too) and rings for live capture.

Why a reader of our own: a gradient that is rebuilt from a capture must never be silently wrong, so a capture that is
damaged has to say so, and where. Given the same damaged files, scapy 2.8.0 and dpkt 1.9.8

* hand out the rest of a packet that the end of a pcap file cuts in two, or whose length is absurd, as a packet,
* (scapy) stop as if the file ended there where a pcapng block is cut off, has two lengths that disagree, a length of 0
  or of gigabytes, or an interface that was never described: at most a line is logged,
* (scapy) look the interface of a later section's packet up among those of the first one,
* (dpkt) name a wrong length, but not where it is; hand out the packets of interfaces that were never described,
* (dpkt) pass on packets of which more was captured than their block holds, padding included,
* turn a hole of zeros in a pcap file into one empty packet of 1970 for each 16 bytes of it,
* (dpkt) read as many bytes into memory as a length in a pcap file claims,
* (dpkt) take the 'modified' pcap format, which has longer record headers, for ordinary pcap.

Here each of these is a `CaptureError` that names file and byte, raised after all whole packets before the damage;
memory is bounded by `capture.walk.MAX_BLOCK_BYTES` whatever the file says; and each packet knows its own offset.
`bench/bench_capture.py` compares the speed with scapy's.
"""
