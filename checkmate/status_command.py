"""`checkmate status`: progress of a shadow node, its lag, and the reason."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import grpc
import typer
from google.protobuf.message import Message
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from checkmate.status_tables import status_view
from checkmate.tls_options import with_tls
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.limits import MAX_MESSAGE_BYTES
from checkmate_common.sidechannel.side_channel_pb2_grpc import ShadowStub
from checkmate_common.tls import ClientTls, Role, TlsError, open_channel, server_name
from checkmate_common.tls.options import TlsOptions
from checkmate_common.tls.probe import Answer, probe

FAILED = 2
"""Exit code when the shadow node cannot be reached or refuses."""
_CALL_SECONDS = 10.0
_PROBE_SECONDS = 3.0


class StatusError(Exception):
    """The shadow node did not give its status."""

    def __init__(self, address: str, message: str, *, refused: bool) -> None:
        """Keep the address, the error, and whether the request was refused, so that a retry is pointless."""
        self.address = address
        self.refused = refused
        super().__init__(f"shadow node at {address}: {message}")


@with_tls
def status_command(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Side channel of the shadow node.")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Only this DP group; by default all.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables; with --watch one document a line.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds between updates.")] = 1.0,
    tls: TlsOptions = TlsOptions(),  # noqa: B008
) -> None:
    """Show trained, replica and durable step of a shadow node, the lag between them, and its reason.

    The lag is given in steps, seconds and bytes. Also shown: how much of the current step has arrived, by flow; memory
    in use and its limit; how busy the node and its storage are, and how many nodes would keep up; repaired, resynced
    and lost steps. docs/operations.md says what to do about each reason.

    With --watch the command waits for a shadow node that does not answer.

    Exit code: 0 shown; 2 not reachable, refused, or no such group.

    Examples:

        checkmate status 127.0.0.1:7100

        checkmate status 127.0.0.1:7100 --group dp0 --json

        checkmate status sh0.cluster:7100 --watch --interval 0.5
    """
    console, errors = Console(), Console(stderr=True)
    request = pb.NodeStatusRequest(group=group or "")
    try:
        credentials = tls.client(server_name(Role.SHADOW))
        with open_channel(address, credentials, [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]) as channel:
            stub = ShadowStub(channel)  # type: ignore[no-untyped-call]

            def ask() -> pb.NodeStatus:
                return _ask(stub, request, address, credentials)

            if watch:
                _watch(ask, console, interval, as_json)
            elif as_json:
                print(json.dumps(to_json(ask()), indent=2))
            else:
                console.print(status_view(ask(), address), highlight=False)
    except KeyboardInterrupt:
        return  # how --watch is meant to end
    except (StatusError, TlsError) as error:
        errors.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None


def _ask(stub: Any, request: pb.NodeStatusRequest, address: str, tls: ClientTls | None) -> pb.NodeStatus:
    try:
        status = stub.GetNodeStatus(request, timeout=_CALL_SECONDS)
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or "no details"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise StatusError(address, "is not a shadow node, or is an older version", refused=True) from error
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise StatusError(address, details, refused=True) from error
        # gRPC only says "connections failed": probing the address says why.
        found = probe(address, tls, _PROBE_SECONDS)
        hint = "is it running, and is this its --listen address?" if found.answer is Answer.ABSENT else ""
        reason = f"{found.reason or details}; {hint}".rstrip("; ")
        raise StatusError(address, reason, refused=found.answer is Answer.REFUSED) from error
    assert isinstance(status, pb.NodeStatus)
    return status


def _watch(ask: Callable[[], pb.NodeStatus], console: Console, interval: float, as_json: bool) -> None:
    def poll() -> pb.NodeStatus | StatusError:
        try:
            return ask()
        except StatusError as error:
            if error.refused:
                raise
            return error

    if as_json:
        while True:
            found = poll()
            document = {"error": str(found)} if isinstance(found, StatusError) else to_json(found)
            print(json.dumps(document), flush=True)
            time.sleep(interval)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, vertical_overflow="crop") as live:
        while True:
            found = poll()
            shown = f"[red]{escape(str(found))}[/]" if isinstance(found, StatusError) else status_view(found, None)
            live.update(shown, refresh=True)
            time.sleep(interval)


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object with all of its fields; whole numbers stay numbers, infinity becomes null."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            found[field.name] = {str(key): value[key] for key in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_plain(each) for each in value]
        else:
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return to_json(value)
    return None if value == float("inf") else value
