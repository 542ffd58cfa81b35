"""One gRPC connection to a P4Runtime switch: every failure is a `ControlPlaneError`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from checkmate_common.tls import ClientTls, open_channel
from checkmate_common.tls.probe import Answer, probe
from controlplane.dialect import RpcFailure, failure_of
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.stream import P4Stream, StreamEnded

CONNECT_S = 5.0
"""Time that a switch has to answer the first request, in seconds."""
REQUEST_S = 30.0
"""Time for any other request, in seconds."""
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})$")
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    # A batch's errors arrive as metadata and can exceed its default limit of 8 kB.
    ("grpc.max_metadata_size", 64 << 10),
    ("grpc.enable_http_proxy", 0),
    # Sessions of one process do not share connections: the switch must see when one of them closes.
    ("grpc.use_local_subchannel_pool", 1),
]


def check_address(target: str) -> None:
    """Check that `target` is of the form HOST:PORT.

    Raises:
        ControlPlaneError: it is not (BAD_ADDRESS).
    """
    match = _ADDRESS.match(target)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ControlPlaneError(
            ErrorKind.BAD_ADDRESS,
            target,
            "is not a valid address",
            hint="expected HOST:PORT, e.g. 127.0.0.1:9559",
        )


class Session:
    """A connection; read-only until `become_primary`.

    Args:
        target: HOST:PORT of the switch.
        device_id: P4Runtime device id.
        connect_timeout_s: time to answer the first request, in seconds.
        tls: own credentials, None for plain text.

    Raises:
        ControlPlaneError: invalid address, no answer, or no P4Runtime server.
    """

    def __init__(
        self, target: str, device_id: int, connect_timeout_s: float = CONNECT_S, tls: ClientTls | None = None
    ) -> None:
        """Connect."""
        check_address(target)
        self.target = target
        self.device_id = device_id
        self._timeout_s = connect_timeout_s
        self._tls = tls
        self._channel = open_channel(target, tls, _OPTIONS)
        self._stub: Any = p4r_grpc.P4RuntimeStub(self._channel)
        self._stream: P4Stream | None = None
        try:
            self._first_contact()
        except BaseException:
            self._channel.close()
            raise

    def close(self) -> None:
        """Stop being a controller and close the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._channel.close()

    @property
    def is_primary(self) -> bool:
        """Whether this client is currently the primary."""
        return self._stream is not None and self._stream.is_primary

    @property
    def stream(self) -> P4Stream:
        """The stream of a session that has called `become_primary`.

        Raises:
            RuntimeError: it has not.
        """
        if self._stream is None:
            raise RuntimeError("this session is read-only: connect with an election id")
        return self._stream

    def become_primary(self, election_id: int) -> None:
        """Arbitrate with `election_id`, or with a higher one if there is no primary.

        Raises:
            ControlPlaneError: another controller is the primary, or it is another device.
        """
        stub = self._stub
        self._stream = P4Stream(stub, self.device_id)
        try:
            answer = self._stream.arbitrate(election_id, self._timeout_s)
        except TimeoutError:
            raise self._error(
                ErrorKind.UNREACHABLE, f"does not answer the arbitration within {self._timeout_s:g} s"
            ) from None
        except StreamEnded as ended:
            raise self._arbitration_refused(ended, election_id) from ended.cause
        if answer.status.code != rpc_code.OK:
            raise self._not_primary(election_id, U128.decode(answer.election_id))

    def get_config(self, kind: str = "COOKIE_ONLY") -> p4r.ForwardingPipelineConfig | None:
        """Return the pipeline config of the switch, None if it has none.

        Args:
            kind: ``COOKIE_ONLY``, ``P4INFO_AND_COOKIE`` or ``ALL``.

        Raises:
            ControlPlaneError: wrong device, or the request fails.
        """
        response_type = p4r.GetForwardingPipelineConfigRequest.ResponseType.Value(kind)
        request = p4r.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=response_type)
        try:
            response: p4r.GetForwardingPipelineConfigResponse = self._stub.GetForwardingPipelineConfig(
                request, timeout=REQUEST_S
            )
        except grpc.RpcError as error:
            failure = failure_of(error)
            if failure.means_no_pipeline:
                return None
            raise self._failed(failure, "reading the pipeline", ErrorKind.READ_REFUSED) from error
        config = response.config
        return config if config.ByteSize() else None

    def verify_config(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Let the switch verify `config`; changes nothing.

        Raises:
            ControlPlaneError: it does not accept the program, or another controller is the primary.
        """
        self._send_config(config, p4r.SetForwardingPipelineConfigRequest.VERIFY)

    def set_config(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Let the switch verify and run `config`, which empties its tables.

        Raises:
            ControlPlaneError: it does not accept the program, or another controller is the primary.
        """
        self._send_config(config, p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT)

    def _send_config(
        self,
        config: p4r.ForwardingPipelineConfig,
        action: p4r.SetForwardingPipelineConfigRequest.Action.ValueType,
    ) -> None:
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=U128.encode(self.stream.election_id),
            action=action,
            config=config,
        )
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=REQUEST_S)
        except grpc.RpcError as error:
            raise self._failed(failure_of(error), "pushing the program", ErrorKind.PIPELINE_REFUSED) from error

    def write(self, updates: Sequence[p4r.Update]) -> dict[int, tuple[str, str]]:
        """Write `updates`; return index -> (code, message) of the refused ones; the others are in force.

        Raises:
            ControlPlaneError: the request as a whole failed; it is unknown which updates are in force.
        """
        request = p4r.WriteRequest(
            device_id=self.device_id, election_id=U128.encode(self.stream.election_id), updates=updates
        )
        try:
            self._stub.Write(request, timeout=REQUEST_S)
        except grpc.RpcError as error:
            failure = failure_of(error)
            if failure.refused:
                return failure.refused
            raise self._failed(failure, "writing updates", ErrorKind.UPDATE_REFUSED) from error
        return {}

    def read(self, requests: Sequence[p4r.Entity], *, absent_is_empty: bool = False) -> list[p4r.Entity]:
        """Return the entities that `requests` select.

        Args:
            requests: what to read.
            absent_is_empty: treat NOT_FOUND as an empty result, not as an error.

        Raises:
            ControlPlaneError: no pipeline, wrong device, or the switch refuses.
        """
        request = p4r.ReadRequest(device_id=self.device_id, entities=requests)
        try:
            responses = self._stub.Read(request, timeout=REQUEST_S)
            return [entity for response in responses for entity in response.entities]
        except grpc.RpcError as error:
            failure = failure_of(error)
            if absent_is_empty and failure.means_absent:
                return []
            raise self._failed(failure, "reading the state", ErrorKind.READ_REFUSED) from error

    def _first_contact(self) -> None:
        # The cheapest request; unlike waiting for readiness, it fails at once if the connection is refused.
        try:
            self._stub.Capabilities(p4r.CapabilitiesRequest(), timeout=self._timeout_s)
        except grpc.RpcError as error:
            failure = failure_of(error)
            if failure.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                found = probe(self.target, self._tls, self._timeout_s)
                if found.answer is Answer.REFUSED:
                    raise self._error(ErrorKind.TLS, found.reason) from error
            if failure.code is grpc.StatusCode.UNIMPLEMENTED:
                raise self._error(
                    ErrorKind.NOT_P4RUNTIME,
                    "this gRPC server does not serve P4Runtime",
                    "is it the switch's gRPC port?",
                ) from error
            raise self._failed(failure, "answering", ErrorKind.INTERNAL) from error

    def _failed(self, failure: RpcFailure, doing: str, otherwise: ErrorKind) -> ControlPlaneError:
        code, words = failure.code, failure.message
        if failure.means_no_pipeline:
            return self._error(
                ErrorKind.NO_PIPELINE,
                f"device {self.device_id} runs no program",
                "install a job first, or give the switch's --device-id",
            )
        if failure.means_wrong_device:
            return self._error(
                ErrorKind.WRONG_DEVICE,
                f"the switch is not device {self.device_id}: {words}",
                "give the switch's id (--device-id, or switch.device_id of the job)",
            )
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return self._error(
                ErrorKind.NOT_PRIMARY,
                f"another controller is the primary: {words}",
                "stop it, or give a higher --election-id",
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._error(
                ErrorKind.UNREACHABLE,
                f"no switch answers: {words}",
                "is the switch running, and is the address right?",
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._error(
                ErrorKind.UNREACHABLE,
                "the switch does not answer in time",
                "is it a switch, and is the address right?",
            )
        return self._error(otherwise, f"{doing} failed: {code.name}: {words}")

    def _arbitration_refused(self, ended: StreamEnded, election_id: int) -> ControlPlaneError:
        if ended.cause is None:
            return self._error(ErrorKind.STREAM_ENDED, "the switch closed the stream during arbitration")
        failure = failure_of(ended.cause)
        if failure.code is grpc.StatusCode.INVALID_ARGUMENT and "election id" in failure.message.lower():
            return self._not_primary(election_id, election_id)
        return self._failed(failure, "arbitration", ErrorKind.INTERNAL)

    def _not_primary(self, mine: int, theirs: int) -> ControlPlaneError:
        return self._error(
            ErrorKind.NOT_PRIMARY,
            f"another controller is the primary, with election id {theirs}; this one has {mine}",
            f"stop the other controller, or take over with --election-id {theirs + 1}",
        )

    def _error(self, kind: ErrorKind, message: str, hint: str | None = None) -> ControlPlaneError:
        return ControlPlaneError(kind, self.target, message, hint=hint)
