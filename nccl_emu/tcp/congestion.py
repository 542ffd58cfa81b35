"""Congestion control: RFC 5681 with the NewReno fast recovery of RFC 6582 and limited transmit (RFC 3042)."""

from __future__ import annotations

DUP_ACK_THRESHOLD = 3
"""Duplicate ACKs that are taken as the loss of a segment."""


class NewReno:
    """Congestion window in bytes; `una` and `top` are the sender's positions SND.UNA and SND.MAX."""

    def __init__(self, smss: int, initial_segments: int) -> None:
        """Begin in slow start; `smss` is the sender's maximum segment size in bytes."""
        self.smss = smss
        self.initial_window = initial_segments * smss
        self.cwnd = self.initial_window
        self.ssthresh = 1 << 62
        self.in_recovery = False
        self.dup_acks = 0
        self.partial_acks = 0
        """Partial ACKs since the current (or last) fast recovery began."""
        # Highest position sent when the last loss was found. -1 rather than RFC 6582's ISS, so that the loss
        # of the very first data segment can be repaired by duplicate ACKs too.
        self._recover = -1
        self._bytes_acked = 0

    def window(self) -> int:
        """Return how many bytes from SND.UNA on may be in flight."""
        if self.dup_acks and not self.in_recovery:
            # Limited transmit: one new segment for each of the first two duplicate ACKs, so that a small
            # window still produces the third.
            return self.cwnd + min(self.dup_acks, 2) * self.smss
        return self.cwnd

    def on_new_ack(self, acked: int, una: int, top: int) -> bool:
        """Take an ACK of `acked` new bytes; `una` is already advanced.

        Returns True for a partial ACK of fast recovery: the segment at `una` is lost too and must be resent.
        """
        self.dup_acks = 0
        if self.in_recovery:
            if una <= self._recover:
                self.partial_acks += 1
                self.cwnd = max(self.cwnd - acked, 0)
                if acked >= self.smss or self.cwnd < self.smss:
                    self.cwnd += self.smss
                return True
            self.cwnd = min(self.ssthresh, max(top - una, self.smss) + self.smss)
            self.in_recovery = False
            self._bytes_acked = 0
            return False
        if self.cwnd < self.ssthresh:
            self.cwnd += min(acked, self.smss)
            return False
        # One segment per window of acknowledged bytes, counted in bytes (RFC 5681 section 3.1).
        self._bytes_acked += acked
        if self._bytes_acked >= self.cwnd:
            self._bytes_acked -= self.cwnd
            self.cwnd += self.smss
        return False

    def on_dup_ack(self, una: int, top: int) -> bool:
        """Take a duplicate ACK; returns True when the segment at `una` must be resent (fast retransmit)."""
        self.dup_acks += 1
        if self.in_recovery:
            self.cwnd += self.smss
            return False
        # Duplicate ACKs up to `recover` may be echoes of our own retransmissions (RFC 6582 section 3.2 step
        # 2).
        if self.dup_acks != DUP_ACK_THRESHOLD or una - 1 <= self._recover:
            return False
        self.ssthresh = max((top - una) // 2, 2 * self.smss)
        self.cwnd = self.ssthresh + DUP_ACK_THRESHOLD * self.smss
        self._recover = top - 1
        self.in_recovery = True
        self.partial_acks = 0
        return True

    def on_timeout(self, una: int, top: int) -> None:
        """React to an expired retransmission timer.

        When the same segment expires again, nothing new is in flight and the threshold stays as it was, as
        RFC 5681 section 3.1 asks.
        """
        self.ssthresh = max((top - una) // 2, 2 * self.smss)
        self.cwnd = self.smss
        self._recover = top - 1
        self.in_recovery = False
        self.dup_acks = 0
        self._bytes_acked = 0

    def on_idle(self) -> None:
        """Restart from the initial window after an idle time longer than the RTO (RFC 5681 section 4.1)."""
        self.cwnd = min(self.cwnd, self.initial_window)

    def on_lost_syn(self) -> None:
        """Begin with one segment because the SYN or SYN+ACK was lost (RFC 5681 section 3.1)."""
        self.initial_window = self.cwnd = self.smss
