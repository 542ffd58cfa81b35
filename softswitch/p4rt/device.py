"""One P4Runtime device: packets on one side, clients on the other, one lock between them.

No sockets, threads or clocks: drivers call `inject` and `poll` with the time, the gRPC service (or a program
in the same process) calls the control methods, from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from finsy.proto import U128, p4r

from softswitch.core import SwitchCore
from softswitch.p4rt.arbitration import Arbiter, Client, Notification, role_key
from softswitch.p4rt.errors import BatchError, Code, P4RuntimeError, invalid
from softswitch.p4rt.packetio import build_packet_out, parse_packet_in
from softswitch.p4rt.pipeline import Pipeline
from softswitch.p4rt.reconcile import copy_state
from softswitch.p4rt.roles import RoleRights
from softswitch.p4rt.streams import Deliver, Stream, stream_error

MAX_PACKET_OUTS = 4096
"""Maximum number of packet-outs that wait for the driver; later ones are refused."""

Frames = list[tuple[int, bytes]]
"""(port, frame) pairs to transmit, in order."""


@dataclass(slots=True)
class DeviceStats:
    """Messages that the device could not deliver.

    Attributes:
        packet_ins_dropped: packets for the CPU port that no client could receive, or shorter than their header.
        digest_lists_dropped: digest lists dropped because a client was too slow.
    """

    packet_ins_dropped: int = 0
    digest_lists_dropped: int = 0


class Device:
    """A switch as P4Runtime sees it.

    Args:
        device_id: id that every request must carry.
        cpu_port: port of packet-in and packet-out, None for none.
        drop_port: port that stands for "drop".
        time_origin_ns: nanoseconds since the epoch at `now_us` 0; only for the timestamps in messages.
        wake: called from any thread, with the lock held, when `poll` has work to do; must not block or call back into
            the device.

    Attributes:
        stats: counts of undelivered messages.
    """

    def __init__(
        self,
        device_id: int,
        *,
        cpu_port: int | None = None,
        drop_port: int = 511,
        time_origin_ns: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """Create a device without a program and without clients."""
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.drop_port = drop_port
        self.stats = DeviceStats()
        self.wake = wake
        self._time_origin_ns = time_origin_ns
        self._lock = Lock()
        self._arbiter = Arbiter(device_id)
        self._streams: dict[Client, Stream] = {}
        self._packet_outs: deque[bytes] = deque()
        self._core: SwitchCore | None = None  # the core that processes packets
        self._committed: Pipeline | None = None  # its P4Runtime side, None if it was loaded without P4Info
        self._saved: Pipeline | None = None  # saved by VERIFY_AND_SAVE, not yet committed

    # -- data plane ------------------------------------------------------------------------------------

    def load(self, config: bytes | str) -> None:
        """Run a BMv2 JSON without P4Info, as `simple_switch_grpc FILE` does; clients still see no pipeline.

        Raises:
            SwitchError: the program is refused.
        """
        core = SwitchCore(config, cpu_port=self.cpu_port, drop_port=self.drop_port)
        with self._lock:
            self._core, self._committed, self._saved = core, None, None

    def inject(self, port: int, frame: bytes, now_us: int) -> Frames:
        """Process a frame that arrived at `port` at time `now_us` (microseconds) and return what to transmit.

        Packets for the CPU port become packet-ins. Digests are added to their lists, which are sent when they are full;
        `poll` sends those that are due. A device without a program drops all frames.
        """
        with self._lock:
            return self._process(port, frame, now_us)

    def poll(self, now_us: int) -> Frames:
        """Do the work due at `now_us`: packet-outs from clients, digest lists that waited long enough."""
        frames: Frames = []
        with self._lock:
            while self._packet_outs and self.cpu_port is not None:
                frames += self._process(self.cpu_port, self._packet_outs.popleft(), now_us)
            self._send_digests(now_us)
        return frames

    def next_deadline_us(self) -> int | None:
        """Return the time by which `poll` must be called, None if nothing is waiting."""
        with self._lock:
            if self._committed is None or not any(True for _ in self._arbiter.primaries()):
                return None
            deadlines = (queue.deadline_us() for _, queue in self._committed.digests.queues())
            return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- unary control ---------------------------------------------------------------------------------

    def write(self, request: p4r.WriteRequest) -> None:
        """Handle a Write.

        Raises:
            P4RuntimeError: the request as a whole is refused.
            BatchError: some of its updates are.
        """
        with self._lock:
            rights = self._authorize(request)
            pipeline = self._pipeline()
            if request.atomicity not in p4r.WriteRequest.Atomicity.values():
                raise invalid(f"atomicity {request.atomicity} is unknown")
            try:
                pipeline.write(request.updates, request.atomicity, rights)
            finally:
                # Digest settings may have made a waiting list due earlier, even if another update failed.
                self._wake()

    def read(self, request: p4r.ReadRequest) -> tuple[list[p4r.Entity], BatchError | None]:
        """Handle a Read; return the entities, and the error that ends the RPC if some requests are invalid.

        Raises:
            P4RuntimeError: the request as a whole is refused.
        """
        with self._lock:
            self.check_device(request.device_id)
            rights = self._arbiter.rights(request.role)
            return self._pipeline().read(request.entities, rights)

    def set_pipeline(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        """Handle a SetForwardingPipelineConfig.

        Raises:
            P4RuntimeError: the request is refused; the pipeline in force is unchanged.
        """
        actions = p4r.SetForwardingPipelineConfigRequest
        with self._lock:
            self._authorize_push(request)
            if request.action == actions.COMMIT:
                self._commit_saved(request)
                return
        if request.action not in (
            actions.VERIFY,
            actions.VERIFY_AND_SAVE,
            actions.VERIFY_AND_COMMIT,
            actions.RECONCILE_AND_COMMIT,
        ):
            raise invalid(f"action {request.action} is not a SetForwardingPipelineConfig action")
        if not request.HasField("config"):
            raise invalid("config is missing")
        config = p4r.ForwardingPipelineConfig()
        config.CopyFrom(request.config)
        # Compiling takes long, so packets and other clients continue meanwhile.
        pipeline = Pipeline(config, cpu_port=self.cpu_port, drop_port=self.drop_port)
        if request.action == actions.VERIFY:
            return
        with self._lock:
            self._authorize_push(request)
            if request.action == actions.VERIFY_AND_SAVE:
                self._saved = pipeline
                return
            if request.action == actions.RECONCILE_AND_COMMIT and self._committed is not None:
                copy_state(self._committed, pipeline)
            self._commit(pipeline)

    def get_pipeline(self, request: p4r.GetForwardingPipelineConfigRequest) -> p4r.GetForwardingPipelineConfigResponse:
        """Handle a GetForwardingPipelineConfig; `config` is unset in the response if there is no pipeline.

        Raises:
            P4RuntimeError: NOT_FOUND for another device, INVALID_ARGUMENT for an unknown response type.
        """
        kinds = p4r.GetForwardingPipelineConfigRequest
        response = p4r.GetForwardingPipelineConfigResponse()
        with self._lock:
            self.check_device(request.device_id)
            if request.response_type not in kinds.ResponseType.values():
                raise invalid(f"response_type {request.response_type} is unknown")
            pipeline = self._saved or self._committed
            if pipeline is None:
                return response
            config = pipeline.config
        response.config.SetInParent()
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    def check_device(self, device_id: int) -> None:
        """Check that a request is for this device.

        Raises:
            P4RuntimeError: NOT_FOUND.
        """
        if device_id != self.device_id:
            raise P4RuntimeError(
                Code.NOT_FOUND, f"device_id {device_id} is unknown; this server has device {self.device_id}"
            )

    # -- streams ---------------------------------------------------------------------------------------

    def open_stream(self, deliver: Deliver) -> Stream:
        """Register a client's stream; it takes part after its first arbitration message."""
        stream = Stream(Client(), deliver)
        with self._lock:
            self._streams[stream.client] = stream
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream that has ended; closing twice does nothing."""
        with self._lock:
            if self._streams.pop(stream.client, None) is not None:
                self._notify(self._arbiter.leave(stream.client))

    def receive(self, stream: Stream, message: p4r.StreamMessageRequest) -> None:
        """Handle a message that a client sent on its stream.

        Raises:
            P4RuntimeError: the stream must be ended with this error. Only arbitration messages cause this; other
                refused messages are answered on the stream.
        """
        form = message.WhichOneof("update")
        with self._lock:
            if stream.client not in self._streams:
                return  # it ended while this message was in transit; it must not be revived
            if form == "arbitration":
                self._arbitrate(stream, message.arbitration)
                return
            try:
                if form == "other" or form is None:
                    raise P4RuntimeError(Code.UNIMPLEMENTED, f"stream message {form or 'without content'}")
                if not self._arbiter.is_primary(stream.client):
                    raise P4RuntimeError(Code.PERMISSION_DENIED, f"only the primary may send {form}")
                if form == "packet":
                    self._queue_packet_out(message.packet)
                elif self._committed is not None:
                    self._committed.digests.acknowledge(message.digest_ack)
            except P4RuntimeError as error:
                stream.deliver(stream_error(message, error))

    # -- internals (the lock is held) ------------------------------------------------------------------

    def _process(self, port: int, frame: bytes, now_us: int) -> Frames:
        if self._core is None:
            return []
        output = self._core.process(port, frame, now_us)
        if output.digests and self._committed is not None:
            for name, values in output.digests:
                self._committed.digests.learn(name, values, now_us)
            self._send_digests(now_us)
        if self.cpu_port is None:
            return output.packets
        frames: Frames = []
        for out_port, out_frame in output.packets:
            if out_port == self.cpu_port:
                self._packet_in(out_frame)
            else:
                frames.append((out_port, out_frame))
        return frames

    def _packet_in(self, frame: bytes) -> None:
        fields = self._committed.schema.packet_in if self._committed is not None else None
        packet = parse_packet_in(fields, frame)
        delivered = False
        if packet is not None and self._committed is not None:
            message = p4r.StreamMessageResponse(packet=packet)
            for client, rights in self._arbiter.primaries():
                if rights.receives(packet):
                    delivered |= self._streams[client].deliver(message)
        self.stats.packet_ins_dropped += not delivered

    def _queue_packet_out(self, packet: p4r.PacketOut) -> None:
        if self._committed is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, self._no_pipeline())
        if self.cpu_port is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, "packet-out: this switch has no CPU port (--cpu-port)")
        if len(self._packet_outs) >= MAX_PACKET_OUTS:
            raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"packet-out: {MAX_PACKET_OUTS} packets are already waiting")
        self._packet_outs.append(build_packet_out(self._committed.schema.packet_out, packet))
        self._wake()

    def _send_digests(self, now_us: int) -> None:
        if self._committed is None:
            return
        receivers = list(self._arbiter.primaries())
        if not receivers:
            return
        for digest_id, queue in self._committed.digests.queues():
            for digest_list in queue.due_lists(now_us, self._time_origin_ns + now_us * 1000):
                message = p4r.StreamMessageResponse(digest=digest_list)
                for client, rights in receivers:
                    if rights.allows(digest_id) and not self._streams[client].deliver(message):
                        self.stats.digest_lists_dropped += 1

    def _arbitrate(self, stream: Stream, message: p4r.MasterArbitrationUpdate) -> None:
        was_primary = self._arbiter.is_primary(stream.client)
        self._notify(self._arbiter.update(stream.client, message))
        if self._arbiter.is_primary(stream.client) and not was_primary and self._committed is not None:
            for _, queue in self._committed.digests.queues():
                queue.forget_unacknowledged()
            self._wake()

    def _notify(self, notifications: Iterable[Notification]) -> None:
        for client, message in notifications:
            self._streams[client].deliver(message)

    def _authorize(self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest) -> RoleRights:
        self.check_device(request.device_id)
        election_id = U128.decode(request.election_id) if request.HasField("election_id") else None
        return self._arbiter.authorize(role_key(request.role, request.role_id), election_id)

    def _authorize_push(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        if not self._authorize(request).push_pipeline:
            raise P4RuntimeError(Code.PERMISSION_DENIED, "the role of the client may not set the pipeline")

    def _pipeline(self) -> Pipeline:
        pipeline = self._saved or self._committed
        if pipeline is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, self._no_pipeline())
        return pipeline

    def _no_pipeline(self) -> str:
        return (
            f"No forwarding pipeline config is set for device {self.device_id}; send SetForwardingPipelineConfig first"
        )

    def _commit_saved(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        if request.HasField("config"):
            raise invalid("COMMIT takes no config: it commits the saved one")
        if self._saved is None:
            raise P4RuntimeError(Code.NOT_FOUND, "no config is saved; send VERIFY_AND_SAVE first")
        self._commit(self._saved)

    def _commit(self, pipeline: Pipeline) -> None:
        self._core, self._committed, self._saved = pipeline.core, pipeline, None
        # Waiting packet-outs were encoded for the previous program's header.
        self._packet_outs.clear()

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()
