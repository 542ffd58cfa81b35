"""Entry point of `checkmate`: mounts the subcommands and turns errors into messages and exit codes.

Subcommand modules import code that needs torch inside the functions that use it: torch takes seconds to import, and
``--help``, completion and most subcommands do not need it.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from checkmate_common.version import program_version
from packets.compiled import mode

try:
    import typer
    from typer.core import TyperCommand

    from checkmate import job_commands, store_commands, switch_commands, testbed_commands
    from checkmate.acceptance_command import acceptance
    from checkmate.certs_command import certs
    from checkmate.inspect_command import inspect
    from checkmate.replay_command import replay_command
    from checkmate.status_command import status_command
except KeyboardInterrupt:  # this takes a second or two
    print("interrupted", file=sys.stderr)
    sys.exit(130)

app = typer.Typer(
    name="checkmate",
    help="Checkpoints of every training iteration, made from the gradients that are already on the wire.\n\n"
    "Exit code of every command: 0 success; 1 a check failed (the command's help says which), or standard output was "
    "closed; 2 the command could not be carried out; 130 interrupted; 143 terminated.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(testbed_commands.app)
app.add_typer(switch_commands.app)
app.add_typer(job_commands.app)
app.add_typer(store_commands.app)
app.command()(store_commands.restore)
app.command()(store_commands.verify)
app.command()(acceptance)
app.command()(certs)
app.command("replay")(replay_command)
app.command()(inspect)
app.command("status")(status_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"checkmate {program_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


class _Program(TyperCommand):
    """A program with its own command line: it gets every argument after the name, including `--help` and `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments as they are."""
        ctx.args = list(args)
        return list(args)


@app.command(cls=_Program)
def shadow(context: typer.Context) -> None:
    """Run a shadow node: capture replicas, follow the training, publish recovery points."""
    from shadow_rx.__main__ import main as run

    raise typer.Exit(run(context.args))


@app.command(cls=_Program)
def rank(context: typer.Context) -> None:
    """Run one emulated rank of a job."""
    from nccl_emu.__main__ import main as run

    raise typer.Exit(run(context.args))


@app.command(cls=_Program)
def softswitch(context: typer.Context) -> None:
    """Run the embedded switch; takes the command line of simple_switch_grpc."""
    from softswitch.main import main as run

    raise typer.Exit(run(context.args))


class _Terminated(BaseException):
    """SIGTERM arrived."""


def _terminate(*_: object) -> None:
    raise _Terminated


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with its status."""
    run: Callable[..., None] = app
    # Handled like an interrupt: everything that was started is stopped on the way out.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        mode()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        try:
            run(args=list(arguments) if arguments is not None else None, prog_name="checkmate")
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Each command explains what it cannot read or write; this is mostly standard output on a full disk.
        if error.errno != errno.EPIPE:
            print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        # The rest of the buffer cannot be written either, and must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1 if error.errno == errno.EPIPE else 2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except _Terminated:
        print("terminated", file=sys.stderr)
        sys.exit(143)


if __name__ == "__main__":
    main()
