"""Decoding a capture of NCCL traffic over RoCEv2: the one entry point that other packages need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capture.model import Packet
from packets.batch import PacketBatch
from rocev2.decoder import Decoder
from rocev2.results import AllReduce, DecodedCapture, MessageSummary, MissingPsn, P2pMessage, QueuePairSummary

__all__ = ["AllReduce", "DecodedCapture", "MessageSummary", "MissingPsn", "P2pMessage", "QueuePairSummary", "decode"]


def decode(
    packets: Iterable[Packet] | Iterable[PacketBatch],
    *,
    use_p2p: bool,
    dtype: str | None,
    file: str,
    bucket_elements: Sequence[int] | None = None,
) -> DecodedCapture:
    """Decode packets in the order of the capture.

    Args:
        packets: one by one, or in batches; consumed as a stream; an exception that it raises passes through.
        use_p2p: let p2p messages supply elements that no all-gather message in the capture shows.
        dtype: element type, ``float32``, ``fp16`` ...; None when not known.
        file: name for the report.
        bucket_elements: elements of each bucket, in any order, where known from the job. An all-reduce whose size on
            the wire fits exactly one of these sizes takes it (LL rounds sizes up to lines of 8 bytes).

    Raises:
        RoceError: `dtype` is not known.
    """
    decoder = Decoder(use_p2p=use_p2p, dtype=dtype, bucket_elements=bucket_elements)
    for item in packets:
        if isinstance(item, PacketBatch):
            decoder.feed(item)
        else:
            decoder.add(item)
    return decoder.finish(file)
