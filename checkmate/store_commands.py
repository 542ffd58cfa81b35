"""`checkmate restore`, `verify` and `store`: restore recovery points and maintain a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from shadow_rx.logs.access_log import VARIABLE, logged_use

if TYPE_CHECKING:
    from shadow_rx.store.maintain import Progress as ProgressCallback
    from shadow_rx.store.verify import StoreReport

DAMAGED = 1
"""Exit code when a store is damaged, or nothing can be recovered."""
FAILED = 2
"""Exit code when the command could not do its work."""

_MOST_LINES, _MOST_RANGES = 50, 10

app = typer.Typer(name="store", help="Manage keys of stores, and remove stores.", no_args_is_help=True)

StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="Directory, or a URL that fsspec supports.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the keys of an encrypted store; by default those of $CHECKMATE_STORE_KEY."),
]
OpenPermissions = Annotated[
    bool, typer.Option("--allow-open-permissions", help="Accept a directory that users other than its owner can read.")
]
AccessLogFile = Annotated[
    Path | None,
    typer.Option("--access-log", metavar="FILE", envvar=VARIABLE, help="Append a JSON line about this access to FILE."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class Format(StrEnum):
    """Formats of a restored recovery point."""

    TORCH = "torch"
    SAFETENSORS = "safetensors"
    DCP = "dcp"
    POINT = "point"


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turn errors into a message and an exit code."""
    from shadow_rx.store.errors import StoreError

    try:
        yield
    except (StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None


@contextmanager
def _progress(title: str) -> Iterator[ProgressCallback]:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _format(target: Path, wanted: Format | None) -> Format:
    if wanted is not None:
        return wanted
    match target.suffix:
        case ".pt" | ".pth":
            return Format.TORCH
        case ".safetensors":
            return Format.SAFETENSORS
    raise typer.BadParameter(
        f"{target} ends neither in .pt nor in .safetensors; give --format (dcp and point make a directory)",
        param_hint="--to",
    )


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r}, expected a number or latest", param_hint="--step")
    return int(text)


def restore(
    store: StoreArgument,
    to: Annotated[Path, typer.Option(help="File to write (.pt, .safetensors), or directory (--format dcp, point).")],
    step: Annotated[str, typer.Option(metavar="N|latest", help="Step to restore.")] = "latest",
    group: Annotated[str | None, typer.Option(help="DP group, if the store holds several.")] = None,
    form: Annotated[Format | None, typer.Option("--format", help="By default according to the file name.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank whose buffers, schedule and RNG states to use.")] = 0,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="With safetensors: only what model.load_state_dict takes.")
    ] = False,
    key_file: KeyFile = None,
    allow_open_permissions: OpenPermissions = False,
    access_log: AccessLogFile = None,
    as_json: AsJson = False,
) -> None:
    """Restore a recovery point as a checkpoint that a training job loads.

    The state is replayed from the newest base before the step. It equals the trainer's bit for bit, or nothing is
    written. A .pt file loads with torch.load(FILE, weights_only=True) and ordinary load_state_dict calls; a dcp
    directory loads into a job with any number of ranks.

    Exit code: 0 written; 2 the step does not exist or cannot be recovered, with the reason.

    Examples:

      checkmate restore out/testbed/checkpoints --to resume.pt

      checkmate restore s3://bucket/run7 --step 1200 --to resume.safetensors --key-file store.key

      checkmate restore out/testbed/checkpoints --step 8 --format dcp --to resume
    """
    from shadow_rx.store import api, export

    chosen, number = _format(to, form), _step(step)
    if model_only and chosen is not Format.SAFETENSORS:
        raise typer.BadParameter("goes with safetensors only", param_hint="--model-only")
    with _reporting_errors(), logged_use(access_log, "restore", store, group) as use:
        use.step = number
        point = api.restore(store, "latest" if number is None else number, group, key_file, allow_open_permissions)
        use.group, use.step = point.manifest.group, point.manifest.step
        match chosen:
            case Format.TORCH:
                export.write_torch(point, to, rank)
            case Format.SAFETENSORS:
                export.write_safetensors(point, to, rank, model_only)
            case Format.DCP:
                export.write_dcp(point, to, rank)
            case Format.POINT:
                export.write_point(point, to)
    found = point.manifest
    if as_json:
        document = {"job": found.job, "group": found.group, "epoch": found.epoch, "step": found.step, "to": str(to),
                "format": chosen.value, "confirmed": found.confirmed}  # fmt: skip
        print(json.dumps(document))
    else:
        print(f"wrote step {found.step} of group {found.group} (job {found.job}, epoch {found.epoch}) to {to}")
        agreed = " and ".join(found.confirmed)
        print(f"the ranks' digests agreed with: {agreed}" if agreed else "the ranks sent no digests of this step")


def verify(
    store: StoreArgument,
    key_file: KeyFile = None,
    allow_open_permissions: OpenPermissions = False,
    access_log: AccessLogFile = None,
    as_json: AsJson = False,
) -> None:
    """Check everything in a store, and print what can be recovered.

    Checks every checksum, replays every gradient, compares the parameters' digest after each step, and compares every
    base with the replay that leads to it.

    Exit code: 0 all sound; 1 damage, named; 2 the store cannot be opened.

    Example: checkmate verify out/testbed/checkpoints
    """
    from shadow_rx.store import api

    with _reporting_errors(), logged_use(access_log, "verify", store), _progress("verify") as progress:
        report = api.recoverable(store, key_file, allow_open_permissions, progress)
    if as_json:
        print(json.dumps({**asdict(report), "sound": report.sound}, indent=1))
    else:
        _print_report(report)
    if not report.sound:
        raise typer.Exit(DAMAGED)


def _print_report(report: StoreReport) -> None:
    console = Console()
    key = f"encrypted with key {report.key_id}" if report.key_id else "not encrypted"
    console.print(f"{report.store}: {report.objects} objects, {report.nbytes} bytes, {key}", highlight=False)
    table = Table("group", "epoch", "recoverable steps", "newest", "not recoverable")
    for epoch in report.epochs:
        newest = str(epoch.recoverable[-1][1]) if epoch.recoverable else "-"
        bad = _ranges((first, last) for first, last, _ in epoch.unrecoverable)
        name = f"{epoch.epoch} (superseded)" if epoch.superseded else str(epoch.epoch)
        table.add_row(epoch.group, name, _ranges(epoch.recoverable) or "none", newest, bad or "-")
    console.print(table)
    for epoch in report.epochs:
        lines = [f"damaged: {damage.name}: {damage.reason}" for damage in epoch.damage]
        lines += [f"{epoch.folder}: step {_ranges([(a, b)])}: {why}" for a, b, why in epoch.unrecoverable]
        for line in lines[:_MOST_LINES]:
            print(line)
        if len(lines) > _MOST_LINES:
            print(f"{epoch.folder}: {len(lines) - _MOST_LINES} more lines (--json has all)")
        agreed = "; ".join(f"{part} of {_ranges(spans)}" for part, spans in epoch.confirmed.items() if spans)
        if agreed:
            print(f"{epoch.folder}: the ranks' digests agreed with: {agreed}")
        if epoch.unchecked:
            print(
                f"{epoch.folder}: not covered: the manifest of step {_ranges(epoch.unchecked)} is of an older version "
                f"and has no checksum; damage to it may go undetected"
            )
        if epoch.others:
            print(f"{epoch.folder}: not part of the store, ignored: {', '.join(epoch.others[:10])}")
    if not report.sound:
        print("the store is damaged")
    elif any(epoch.unrecoverable for epoch in report.epochs):
        print("every object is sound, but some steps cannot be recovered")
    else:
        print("everything is sound")


def _ranges(spans: Iterable[tuple[int, int]]) -> str:
    texts = [f"{first} to {last}" if last > first else str(first) for first, last in islice(spans, _MOST_RANGES + 1)]
    return ", ".join([*texts[:_MOST_RANGES], *(["..."] if len(texts) > _MOST_RANGES else [])])


@app.command("create-key")
def create_key(
    key_file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")], as_json: AsJson = False
) -> None:
    """Make a key for an encrypted store, in a file that only its owner can read. Without the key the store is lost.

    Example: checkmate store create-key store.key
    """
    from shadow_rx.store.storage.crypto import Key, KeyRing, write_key_file

    with _reporting_errors():
        if key_file.exists():
            raise FileExistsError(f"{key_file} exists already; overwriting it would lose its keys")
        key_file.parent.mkdir(parents=True, exist_ok=True)
        key = Key.new()
        write_key_file(key_file, KeyRing((key,), str(key_file)))
    print(json.dumps({"key_id": key.id, "file": str(key_file)}) if as_json else f"wrote key {key.id} to {key_file}")


@app.command("rotate-key")
def rotate_key(
    store: StoreArgument,
    key_file: Annotated[Path, typer.Option(help="File with the keys; the new one is put first, the others stay.")],
    drop_old_keys: Annotated[
        bool,
        typer.Option("--drop-old-keys", help="At the end, remove the other keys from the file."),
    ] = False,
    allow_open_permissions: OpenPermissions = False,
    access_log: AccessLogFile = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt a whole store with a new key; an unencrypted store becomes encrypted.

    No shadow node may write to the store meanwhile. Run the command again to finish an interrupted run. To use a new
    key for new objects only, put it before the old one in the key file.

    The old keys stay in the file after the new one, because another store may need them: without its key a store is
    lost. If none does, --drop-old-keys removes them.

    Example: checkmate store rotate-key out/testbed/checkpoints --key-file store.key
    """
    from shadow_rx.store import maintain
    from shadow_rx.store.opening import storage_of

    with _reporting_errors(), logged_use(access_log, "rotate-key", store), _progress("encrypt") as progress:
        storage = storage_of(store, allow_open=allow_open_permissions)
        key = maintain.rotate_key(storage, key_file, drop_old_keys, progress)
    where = "now the only key in" if drop_old_keys else "now the first key in"
    print(json.dumps({"key_id": key.id}) if as_json else f"{store} is encrypted with key {key.id}, {where} {key_file}")


@app.command()
def purge(
    store: StoreArgument,
    keys: Annotated[bool, typer.Option("--keys", help="Remove the key file too.")] = False,
    key_file: KeyFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    allow_open_permissions: OpenPermissions = False,
    access_log: AccessLogFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a store with all of its recovery points, and with --keys its key file.

    Flash drives and versioned object stores may keep removed data; only destroying the last copy of the key makes an
    encrypted store unreadable everywhere.

    Example: checkmate store purge out/testbed/checkpoints --yes
    """
    from shadow_rx.store import maintain
    from shadow_rx.store.opening import read_description, storage_of

    if keys and key_file is None:
        raise typer.BadParameter("needs --key-file: keys in the environment cannot be removed", param_hint="--keys")
    with _reporting_errors(), logged_use(access_log, "purge", store) as use:
        storage = storage_of(store, allow_open=allow_open_permissions)
        read_description(storage)
        sizes = storage.sizes()
        what = f"{len(sizes)} objects ({sum(sizes.values())} bytes) of {store}" + (f", and {key_file}" if keys else "")
        if not yes and not typer.confirm(f"Remove {what}? They cannot be recovered.", err=True):
            use.result = "DECLINED"
            raise typer.Exit(FAILED)
        with _progress("purge") as progress:
            removed = maintain.purge(storage, progress)
        if keys and key_file is not None:
            key_file.unlink(missing_ok=True)
    print(json.dumps({"removed": removed, "keys": keys}) if as_json else f"removed {what}")
