"""What a trainer uploads: planned from its header, prepared without the node's lock, then taken. Pure.

Checking the digest, reading the file, building the optimizer and copying its state take time in proportion to the
state: whoever drives a core from several threads does that between two calls of the core (`ShadowNode.upload`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_common.recovery.point import RecoveryPointError, unpack_tensors
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from shadow_rx.apply.model import LiveModel, Tensors, tensor_bytes
from shadow_rx.errors import Refusal, ShadowError, check_step, invalid
from shadow_rx.trainer.declared import check_constants, split_constants
from shadow_rx.trainer.description import OptimizerPlan
from shadow_rx.trainer.inventory import ObjectInfo
from shadow_rx.trainer.rank_step import DIGEST_BYTES


@dataclass(frozen=True)
class UploadPlan:
    """What a state has to be, as the group was when its upload began."""

    epoch: int
    """Incarnation."""
    step: int
    """Step after which the state is valid."""
    layout: Layout
    """Layout of that step."""
    optimizer: OptimizerPlan
    """Its optimizer."""
    constants: Mapping[str, ObjectInfo]
    """Objects that the trainer listed as constant, by their tensor names."""
    copies: int
    """Copies of the state that there has to be room for."""
    room: int
    """Bytes for them."""


@dataclass(frozen=True)
class PreparedState:
    """A state that was checked and built, ready to go on from."""

    plan: UploadPlan
    """What it was checked against."""
    model: LiveModel
    """The live copy."""
    tensors: Tensors
    """Copies of its parameters and optimizer state, to publish."""
    constants: Tensors
    """Objects that are the same for the whole run: ``state/<object>``."""


def check_header(header: pb.StateHeader, limit: int) -> None:
    """Check a header in itself, before any data is kept; `limit` is the most that a state may have.

    Raises:
        ShadowError: without a digest, or too large; names the field.
    """
    if len(header.state_sha256) != DIGEST_BYTES:
        found = len(header.state_sha256)
        raise invalid("header.state_sha256", f"{found} bytes, expected the SHA-256 ({DIGEST_BYTES}) of the state")
    check_step("header.step", header.step)
    if header.state_bytes > limit:
        message = f"{header.state_bytes} bytes, the memory limit is {limit}; raise it"
        raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "header.state_bytes", message)


def check_transfer(header: pb.StateHeader, data: bytes) -> None:
    """Check that `data` are the bytes that the trainer sent.

    Raises:
        ShadowError: they are not.
    """
    if len(data) != header.state_bytes:
        raise invalid("header.state_bytes", f"says {header.state_bytes}, {len(data)} bytes came")
    found = hashlib.sha256(data).digest()
    if found != header.state_sha256:
        told = f"says {header.state_sha256.hex()}, what came has {found.hex()}"
        raise invalid("header.state_sha256", f"{told}: the state was changed on its way; send it again")


def prepare(plan: UploadPlan, data: bytes) -> PreparedState:
    """Read `data`, a safetensors file, and build what is needed to go on from it.

    Raises:
        ShadowError: no such file, a state that does not fit the description, or memory would not suffice.
    """
    try:
        state = unpack_tensors(data)
    except RecoveryPointError as error:
        raise invalid("data", str(error)) from error
    need = tensor_bytes(state) * plan.copies
    if need > plan.room:
        message = f"needs {need} bytes, there is room for {plan.room}; raise the memory limit, or use a smaller window"
        raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "data", message)
    trained, constants = split_constants(state)
    check_constants(plan.constants, constants)
    model = LiveModel(plan.layout, plan.optimizer, trained)
    return PreparedState(plan, model, model.snapshot(), constants)
