"""Packet capture: files (pcap and pcapng, as streams of batches; writing them too) and rings for live capture.

Why not an existing reader: a gradient that is rebuilt from a capture must never be silently wrong, so damage must be
reported with its position. Given the same damaged files, scapy 2.8.0 and dpkt 1.9.8

* return the rest of a packet that is cut off by the end of a pcap file, or whose length is absurd, as a packet,
* (scapy) stop as if the file ended at a pcapng block that is cut off, has two different lengths, a length of 0 or of
  gigabytes, or an undescribed interface: at most a line is logged,
* (scapy) look up the interface of a later section's packet among those of the first one,
* (dpkt) report a wrong length without its position; return the packets of undescribed interfaces,
* (dpkt) return packets with more captured bytes than their block holds, including padding,
* turn a hole of zeros in a pcap file into one empty packet of 1970 for each 16 bytes of it,
* (dpkt) read as many bytes into memory as a length in a pcap file claims,
* (dpkt) treat the 'modified' pcap format, which has longer record headers, as ordinary pcap.

Here each of these is a `CaptureError` that names file and byte, raised after all complete packets before the damage;
memory is bounded by `capture.walk.MAX_BLOCK_BYTES` whatever the file claims; and each packet has its offset.
`bench/bench_capture.py` compares the speed with scapy's.
"""
