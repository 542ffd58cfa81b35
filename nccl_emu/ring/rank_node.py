"""One rank on the network as a pure object: frames and time in, frames and timers out.

The rank opens one connection a channel to its successor and listens for its predecessor's. `RingRunner` says
what the streams carry; this object moves bytes between the streams and TCP, and tells connections apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from checkmate_common.stream.layout import Layout
from jobspec.model import Flow, Group, Host, Job
from nccl_emu.errors import EmulatorError, LinkError, RingError
from nccl_emu.ring.ring_link import RankStats, RingLink
from nccl_emu.ring.ring_runner import RingPlace, RingRunner
from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpFlags, TcpState, reset_reply
from packets.frame import ParsedFrame, parse_frame
from packets.template import FrameTemplate, PacketError

_PORTS = range(32768, 61000)
"""Source ports: what Linux uses by default (ip_local_port_range)."""
_PORT_CLASSES = 64
"""Epoch e takes a port congruent to e: 64 epochs in a row differ, even where each is a process of its own."""
_SYN_ONLY = TcpFlags.SYN
_SYN_ACK_RST = TcpFlags.SYN | TcpFlags.ACK | TcpFlags.RST


class RankNode:
    """Connections of one rank of one group, over all its epochs."""

    def __init__(self, job: Job, group: Group, rank: int, tcp: TcpConfig | None = None) -> None:
        """Make a rank that is not connected and answers nothing yet.

        Args:
            job: the job.
            group: one of its groups.
            rank: position in the group's ring.
            tcp: parameters of the connections; MSS and SYN codepoint are set from the job.
        """
        size = len(group.ring)
        self.job = job
        self.group = group
        self.rank = rank
        self.host = job.host(group.ring[rank])
        self.successor = job.host(group.ring[(rank + 1) % size])
        self.predecessor = job.host(group.ring[(rank - 1) % size])
        self.stats = RankStats()
        self.runner: RingRunner | None = None
        """The ring of the present epoch, None before the first."""
        self.epoch = 0
        self._tcp = replace(tcp or TcpConfig(), mss=job.mss, syn_dscp=job.dscp.primary)
        flows = sorted((f for f in job.flows if f.group == group), key=lambda flow: flow.channel)
        self._own_flows = [flow for flow in flows if flow.rank == rank]
        self._incoming_flows = [flow for flow in flows if flow.rank == (rank - 1) % size]
        self._mac = bytes.fromhex(self.host.mac.replace(":", ""))
        self._ip = str(self.host.ip)
        self._to_successor = self._template(self.successor)
        self._to_predecessor = self._template(self.predecessor)
        self._used_ports: dict[int, set[int]] = {flow.id: set() for flow in self._own_flows}
        self._rng = random.Random(0)
        self._outgoing: list[RingLink] = []
        self._incoming: list[RingLink] = []
        self._frames: list[bytes] = []
        self._ident = 0
        self._deaf = True
        self._closing = False
        self._error: EmulatorError | None = None

    # --- connections

    def connect(self, epoch: int, first_step: int, layout: Layout, now: float, rng: random.Random) -> None:
        """Prepare the connections of a new communicator and listen; `open` sends the SYNs.

        What is left of the last epoch is dropped without a word: its late segments are answered as those of
        no connection.

        Args:
            epoch: incarnation of the communicator, larger than the last.
            first_step: step that the streams begin with, from 1.
            layout: layout of its steps.
            now: time in seconds.
            rng: draws initial sequence numbers and source ports; kept.

        Raises:
            LinkError: the epoch is not newer than the last.
        """
        if epoch <= self.epoch:
            raise LinkError("epoch", f"epoch {epoch} was used already, expected {self.epoch + 1} or more")
        self.epoch = epoch
        self.runner = RingRunner(RingPlace.of(self.job, self.group, self.rank, epoch), layout, first_step)
        self._rng = rng
        self._closing = False
        self._error = None
        self._deaf = False
        self._outgoing = []
        for flow in self._own_flows:
            endpoint = TcpEndpoint(self._tcp, self._source_port(flow), flow.tcp_port, rng.getrandbits(32))
            self._outgoing.append(RingLink(flow, self.successor, endpoint, self._to_successor))
        self._incoming = [self._listener(flow) for flow in self._incoming_flows]
        self._pump(now)

    def flows_to_open(self) -> list[tuple[int, int]]:
        """Return (flow id, source port) of each connection that `open` will open."""
        return [(link.flow.id, link.endpoint.local_port) for link in self._outgoing]

    def open(self, now: float) -> None:
        """Send the SYNs."""
        for link in self._outgoing:
            link.endpoint.open(now)
        self._pump(now)

    @property
    def connected(self) -> bool:
        """Whether all connections, to the successor and from the predecessor, are established."""
        links = [*self._outgoing, *self._incoming]
        return bool(links) and all(link.connected for link in links)

    def close(self, now: float) -> None:
        """End the connections in good order: a FIN after the last byte, and after the predecessor's FIN."""
        self._closing = True
        for link in self._outgoing:
            link.endpoint.close(now)
        self._pump(now)

    @property
    def closed(self) -> bool:
        """Whether every connection is over, TIME-WAIT included; true before the first `connect` too."""
        return all(link.endpoint.state is TcpState.CLOSED for link in (*self._outgoing, *self._incoming))

    def abort(self, now: float, *, silent: bool = False) -> None:
        """Drop all connections as a crash does.

        Args:
            now: time in seconds.
            silent: as when the host dies: nothing is sent, and nothing answered until the next `connect`.
                Otherwise as when the process dies: its kernel sends RSTs, also to late segments.
        """
        if not silent:
            for link in (*self._outgoing, *self._incoming):
                link.endpoint.abort(now)
            self._collect(now)
        else:
            self._frames.clear()
        self._outgoing, self._incoming = [], []
        self._deaf = silent

    # --- all-reduce

    def change_layout(self, layout: Layout) -> None:
        """Let `layout` be that of the steps to come; the connections go on. See `RingRunner.change_layout`.

        Raises:
            LinkError: not connected.
            RingError: the last step is not done.
        """
        if self.runner is None:
            raise LinkError("not_connected", "a change of layout needs connections: call connect and open first")
        self.runner.change_layout(layout)

    def start_all_reduce(self, step: int, buckets: Sequence[torch.Tensor], now: float) -> None:
        """Begin the all-reduce of `step` over `buckets`, in place; see `RingRunner.start`.

        Raises:
            LinkError: not connected.
            RingError: the last step is not done, or step or buckets do not fit.
        """
        if self.runner is None or not self._outgoing:
            raise LinkError("not_connected", f"step {step} needs connections: call connect and open first")
        self.runner.start(step, buckets)
        self._pump(now)

    @property
    def done(self) -> bool:
        """Whether the all-reduce started last is complete: the buckets hold the sums and may be used."""
        return self.runner is not None and self.runner.done and self.error is None

    @property
    def error(self) -> EmulatorError | None:
        """Why this communicator cannot go on, None while it can."""
        if self._error is None:
            links = (*self._outgoing, *self._incoming)
            self._error = next((link.error for link in links if link.error is not None), None)
        return self._error

    # --- packets and time

    def on_frame(self, frame: bytes, now: float) -> None:
        """Take a frame from the wire; nothing that arrives raises an exception."""
        if self._deaf or frame[:6] != self._mac:
            self.stats.not_ours += 1
            return
        try:
            parsed = parse_frame(frame)
        except PacketError:
            self.stats.malformed += 1
            return
        if parsed is None:
            self.stats.not_ours += 1
        elif not parsed.checksums_ok:
            self.stats.bad_checksums += 1
        elif parsed.dst_ip != self._ip:
            self.stats.not_ours += 1
        else:
            self._on_segment(parsed, now)

    def on_timer(self, now: float) -> None:
        """Handle every timer that has expired at `now`."""
        for link in (*self._outgoing, *self._incoming):
            link.endpoint.on_timer(now)
        self._pump(now)

    def next_timer(self) -> float | None:
        """Return the time of the next timer, None when none runs."""
        timers = (link.endpoint.next_timer() for link in (*self._outgoing, *self._incoming))
        return min((timer for timer in timers if timer is not None), default=None)

    def take_frames(self) -> list[bytes]:
        """Return the frames to send now, in order."""
        frames, self._frames = self._frames, []
        return frames

    @property
    def progress(self) -> int:
        """Bytes received in order and acknowledged by the peers: stands still when the ring does."""
        links = (*self._outgoing, *self._incoming)
        return sum(link.endpoint.stats.bytes_received + link.endpoint.stats.bytes_acked for link in links)

    def waits_for(self) -> str:
        """Describe what is not complete, for the error of a caller that lost its patience."""
        links = (*self._outgoing, *self._incoming)
        states = ", ".join(f"flow {k.flow.id} with {k.peer.name} is {k.endpoint.state.value}" for k in links)
        if self.runner is None or self._closing or not self.connected:
            return f"connections: {states or 'none'}"
        missing = self.runner.waits_for()
        if missing:
            return f"step {self.runner.step}: {missing} from {self.predecessor.name}"
        waiting = sum(link.endpoint.unacked + link.endpoint.unsent for link in self._outgoing)
        return f"step {self.runner.step}: {self.successor.name} has not acknowledged {waiting} bytes"

    # --- inside

    def _template(self, peer: Host) -> FrameTemplate:
        return FrameTemplate(self.host.mac, peer.mac, str(self.host.ip), str(peer.ip))

    def _listener(self, flow: Flow) -> RingLink:
        endpoint = TcpEndpoint(self._tcp, flow.tcp_port, None, self._rng.getrandbits(32))
        endpoint.listen()
        return RingLink(flow, self.predecessor, endpoint, self._to_predecessor)

    def _source_port(self, flow: Flow) -> int:
        used = self._used_ports[flow.id]
        listening = range(self.group.tcp_port, self.group.tcp_port + self.group.channels)
        start = _PORTS.start + self.epoch % _PORT_CLASSES
        ports = range(start, _PORTS.stop, _PORT_CLASSES)
        free = [port for port in ports if port not in used and port not in listening]
        if not free:
            raise LinkError("ports", f"all source ports of epoch {self.epoch} were used", flow=flow.id)
        port = self._rng.choice(free)
        used.add(port)
        return port

    def _on_segment(self, parsed: ParsedFrame, now: float) -> None:
        segment = parsed.segment
        link = self._link_of(parsed.src_ip, segment)
        if link is None:
            self._on_stranger(parsed.src_ip, segment)
            return
        self.stats.frames_received += 1
        link.endpoint.on_segment(segment, now)
        self._pump(now)

    def _link_of(self, source: str, segment: Segment) -> RingLink | None:
        for link in self._outgoing:
            endpoint = link.endpoint
            if (segment.src_port, segment.dst_port) == (endpoint.remote_port, endpoint.local_port):
                return link if source == link.peer_ip else None
        for link in self._incoming:
            endpoint = link.endpoint
            if segment.dst_port == endpoint.local_port and endpoint.remote_port in (None, segment.src_port):
                return link if source == link.peer_ip else None
        return None

    def _on_stranger(self, source: str, segment: Segment) -> None:
        """Answer a segment of no connection as TCP does (RFC 9293 section 3.10.7.1)."""
        neighbours = ((self.predecessor, self._to_predecessor), (self.successor, self._to_successor))
        template = next((template for host, template in neighbours if source == str(host.ip)), None)
        if template is None:
            self.stats.not_ours += 1
            return
        self.stats.old_connections += 1
        # A SYN to a listener whose one place is taken is dropped, as a full backlog does: the peer of a new
        # epoch tries again until this rank has joined that epoch.
        if segment.flags & _SYN_ACK_RST == _SYN_ONLY:
            return
        reply = reset_reply(segment)
        if reply is not None:
            self._send(template.build(reply, self._next_ident()))

    def _pump(self, now: float) -> None:
        """Move bytes between streams and connections, then collect frames."""
        try:
            self._receive()
            self._transmit()
        except RingError as error:
            self._error = self._error or error
        if self._closing:
            for link in self._incoming:
                if link.endpoint.peer_closed or not link.was_connected:
                    link.endpoint.close(now)
        self._collect(now)

    def _receive(self) -> None:
        runner = self.runner
        if runner is None or self._error is not None:
            return
        for channel, link in enumerate(self._incoming):
            endpoint = link.endpoint
            while endpoint.readable and (wanted := runner.wanted(channel)):
                runner.feed(channel, endpoint.read(wanted))
            if endpoint.peer_closed and not endpoint.readable and runner.wanted(channel):
                self._error = link.closed_early(f"step {runner.step} was complete")

    def _transmit(self) -> None:
        runner = self.runner
        if runner is None or self._error is not None:
            return
        for channel, link in enumerate(self._outgoing):
            while link.endpoint.writable and (write := runner.next_write(channel)) is not None:
                link.endpoint.write(write.data, write.dscp)
            if link.endpoint.peer_closed and not self._closing:
                self._error = link.closed_early("this rank had sent everything")

    def _collect(self, now: float) -> None:
        for index, link in enumerate(self._incoming):
            self._take(link, now)
            if link.endpoint.error is not None and not link.was_connected and not self._closing:
                # A handshake with an old SYN came to nothing: the predecessor's real one is still to come.
                self._incoming[index] = self._listener(link.flow)
        for link in self._outgoing:
            self._take(link, now)

    def _take(self, link: RingLink, now: float) -> None:
        frames = link.take_frames(now, self._ident, self.stats)
        self._ident += len(frames)
        self._frames += frames

    def _send(self, frame: bytes) -> None:
        self.stats.frames_sent += 1
        self.stats.frame_bytes += len(frame)
        self._frames.append(frame)

    def _next_ident(self) -> int:
        self._ident += 1
        return self._ident & 0xFFFF
