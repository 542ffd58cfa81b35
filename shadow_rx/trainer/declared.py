"""The trainer's state objects against the job's declarations, and against what the shadow really holds. Pure.

An *inventory* lists the objects of one rank. A step is published only when every object of every rank is declared,
comes from where it is declared to come from, and is there for this very step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.recovery.state import (
    SHARED_PREFIX,
    Declared,
    Origin,
    StateManifest,
    members_text,
    value_digest,
)
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.limits import MAX_RECORD_BYTES
from checkmate_common.stream.layout import Layout
from shadow_rx.errors import Refusal, ShadowError, invalid
from shadow_rx.status.group_status import Gap
from shadow_rx.trainer.description import OptimizerPlan
from shadow_rx.trainer.inventory import Inventory, ObjectInfo, parse_inventory
from shadow_rx.trainer.rank_step import RankStep

_SHOWN = 3


@dataclass(frozen=True)
class _Plan:
    """What an inventory demands of each step, given layout and optimizer: worked out once."""

    trouble: str | None
    due: tuple[tuple[str, Declared], ...]
    constants: tuple[ObjectInfo, ...]


class StateCheck:
    """Compares what ranks list with the job's declarations and with what the shadow holds.

    Memory: the results for a few inventories, beside the rules.
    """

    def __init__(self, manifest: StateManifest) -> None:
        """Check against `manifest`."""
        self._manifest = manifest
        self._attached = Inventory({}, b"")
        self._plans: dict[tuple[bytes, int, int], _Plan] = {}

    def listed(self, message: pb.AttachRequest) -> Inventory:
        """Return what a trainer lists that attaches; nothing changes yet.

        Raises:
            ShadowError: the list is not usable, or a record would be too large that carries what it has to.
        """
        listed = parse_inventory(message.state_objects, "state_objects")
        self._check_record_size(listed)
        return listed

    def begin(self, listed: Inventory) -> None:
        """Let the constants of `listed` be those that uploads have to bring."""
        self._attached = listed

    def holds(self, listed: Inventory, constants: Mapping[str, torch.Tensor]) -> bool:
        """Tell whether `constants` are all those of `listed`, with the announced values."""
        needed = self._constants(listed)
        return needed.keys() == constants.keys() and all(
            tensor_digest(constants[name]) == info.digest for name, info in needed.items()
        )

    def needed(self, layout: Layout) -> dict[str, ObjectInfo]:
        """Return the constants that an uploaded state has to bring, by their tensor names.

        A constant that is trained by the state's step, whose layout is `layout`, is one no longer.
        """
        trained = {f"{SHARED_PREFIX}model.{slot.param.name}" for slot in layout.slots}
        return {name: info for name, info in self._constants(self._attached).items() if name not in trained}

    def undeclared(self, inventory: Inventory, layout: Layout) -> str | None:
        """Return what is wrong with `inventory` whatever the step, None where nothing is: names objects and the fix."""
        return self._plan(inventory, layout).trouble

    def _constants(self, inventory: Inventory) -> dict[str, ObjectInfo]:
        """Return the objects that have to be captured once, by their tensor names (``state/<object>``)."""
        declared = ((info, self._manifest.find(name)) for name, info in inventory.objects.items())
        return {
            SHARED_PREFIX + info.name: info
            for info, found in declared
            if found is not None and found.origin is Origin.CONSTANT
        }

    def _check_record_size(self, inventory: Inventory) -> None:
        """Refuse objects that no record can carry: a step whose record does not arrive is never a recovery point.

        Raises:
            ShadowError: names the largest one.
        """
        sizes = {
            name: info.nbytes
            for name, info in inventory.objects.items()
            if (found := self._manifest.find(name)) is not None
            and found.origin in (Origin.SIDE_CHANNEL, Origin.SNAPSHOT)
        }
        total = sum(sizes.values())
        if total > MAX_RECORD_BYTES:
            name = max(sizes, key=sizes.__getitem__)
            declared = self._manifest.find(name)
            assert declared is not None
            message = (
                f"the objects that records have to carry take {total} bytes, most is {MAX_RECORD_BYTES}; the largest "
                f"one is {name} ({sizes[name]} bytes, declared {declared.origin} by {declared.pattern!r})"
            )
            raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "state_objects", message)

    def before(
        self, step: int, records: Iterable[tuple[RankStep, Inventory | None]], plan: OptimizerPlan
    ) -> Gap | None:
        """Return why `step` must not be applied: a rank's optimizer may be another than the shadow was told of.

        Args:
            step: the step.
            records: all ranks' records, each with the inventory that it refers to (None: never listed).
            plan: the optimizer that this shadow would apply.
        """
        first: RankStep | None = None
        for record, inventory in records:
            first = first or record
            if (record.scale, record.skipped) != (first.scale, first.skipped):
                detail = f"ranks {first.rank} and {record.rank} scaled or skipped the gradient differently"
                return Gap(step, GapReason.DIGEST_MISMATCH, detail)
            if inventory is None:
                listed = "lists none" if not record.state_digest else "refers to a list that did not arrive"
                detail = f"rank {record.rank} must list its state objects, but {listed}"
                return Gap(step, GapReason.UNDECLARED_STATE, detail)
            told = {f"param_groups.{i}.params": members_text(plan.name, g.params) for i, g in enumerate(plan.groups)}
            found = {info.name: info.dtype for info in inventory.objects.values() if info.kind == "params"}
            if found != told:
                name = next(name for name in sorted({*found, *told}) if found.get(name) != told.get(name))
                detail = (
                    f"rank {record.rank} has {name} = {found.get(name, 'nothing')}, this shadow was told "
                    f"{told.get(name, 'nothing')}: another optimizer or group has to be announced before its first step"
                )
                return Gap(step, GapReason.DIGEST_MISMATCH, detail)
        return None

    def after(
        self, step: int, records: Iterable[tuple[RankStep, Inventory | None]], layout: Layout,
        tensors: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor],
    ) -> Gap | None:  # fmt: skip
        """Return why `step`, which was applied, cannot be published; None when every object is accounted for.

        Args:
            step: the step.
            records: as for `before`, every rank's inventory known.
            layout: layout of the step.
            tensors: what the shadow holds after the step (``param/...``, ``optim/...``).
            constants: objects that were captured once (``state/...``).
        """
        for record, inventory in records:
            assert inventory is not None, "`before` was not asked"
            plan = self._plan(inventory, layout)
            if plan.trouble is not None:
                return Gap(step, GapReason.UNDECLARED_STATE, f"rank {record.rank}: {plan.trouble}")
            unequal = _replayed(inventory, tensors)
            if unequal is not None:
                return Gap(step, GapReason.UNDECLARED_STATE, f"rank {record.rank}: {unequal}")
            missing = self._sent(step, record, inventory, plan)
            if missing is not None:
                return Gap(step, GapReason.SIDE_CHANNEL_MISSING, f"rank {record.rank}: {missing}")
            for info in plan.constants:
                if SHARED_PREFIX + info.name not in constants:
                    detail = f"{info.name} is declared constant, but it was not uploaded"
                    return Gap(step, GapReason.SIDE_CHANNEL_MISSING, detail)
        return None

    def _plan(self, inventory: Inventory, layout: Layout) -> _Plan:
        key = (inventory.digest, layout.version, id(layout))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= 64:
                self._plans.clear()
            plan = self._plans[key] = self._worked_out(inventory, layout)
        return plan

    def _worked_out(self, inventory: Inventory, layout: Layout) -> _Plan:
        trained = {slot.param.name: slot.param for slot in layout.slots}
        undeclared: list[str] = []
        wrong: list[str] = []
        due: list[tuple[str, Declared]] = []
        constants: list[ObjectInfo] = []
        for name, info in inventory.objects.items():
            declared = self._manifest.find(name)
            if declared is None:
                undeclared.append(name)
                continue
            is_trained = info.section == "model" and info.key in trained
            if is_trained:
                param = trained[info.key]
                if (info.shape, info.dtype) != (param.shape, param.dtype.label):
                    wrong.append(
                        f"{name} is {info.dtype} {info.shape}, the layout says {param.dtype.label} {param.shape}"
                    )
            # A parameter that is constant at first may be trained from an announced step on: more than was declared.
            replayed = is_trained or info.section == "optimizer"
            if is_trained and declared.origin is Origin.CONSTANT:
                continue
            if (declared.origin is Origin.REPLAY) != replayed:
                wrong.append(_misdeclared(info, declared))
            elif declared.origin is Origin.CONSTANT:
                constants.append(info)
            elif declared.origin is not Origin.REPLAY:
                due.append((name, declared))
        absent = [name for name in trained if f"model.{name}" not in inventory.objects]
        if absent:
            wrong.append(f"its model has no parameter {absent[0]}, which is in the layout")
        exact = self._manifest.exact_names
        unknown = [name for name in exact if name not in inventory.objects and not name.startswith("optimizer.")]
        if unknown:
            origin = self._manifest.rules[unknown[0]].origin
            fix = "remove the line from the section state"
            wrong.append(f"{unknown[0]} is declared ({origin}), but the trainer has no such object: {fix}")
        if undeclared:
            more = f" and {len(undeclared) - _SHOWN} more" if len(undeclared) > _SHOWN else ""
            names = ", ".join(undeclared[:_SHOWN]) + more
            fix = f"add a line to the job's section state, e.g. {undeclared[0]}: side_channel"
            wrong.insert(0, f"{names} not declared: {fix}")
        return _Plan("; ".join(wrong[:_SHOWN]) or None, tuple(due), tuple(constants))

    def _sent(self, step: int, record: RankStep, inventory: Inventory, plan: _Plan) -> str | None:
        for name, declared in plan.due:
            info = inventory.objects[name]
            if not declared.due(step):
                return f"{name} is captured every {declared.rule.every} steps (snapshot), not at this one"
            if info.kind == "params":
                continue
            if info.kind == "option":
                index, _, key = info.key.partition(".")
                if index.isdecimal() and int(index) < len(record.options) and key in record.options[int(index)]:
                    continue
            elif info.kind == "tensor":
                tensor = record.tensors.get(name)
                if tensor is not None and not info.is_like(tensor):
                    return f"{name} is {tensor.dtype} {tuple(tensor.shape)}, listed as {info.dtype} {info.shape}"
                if tensor is not None:
                    continue
            elif record.has(name):
                continue
            return f"{name} is declared {declared.origin}, but its record of this step does not carry it"
        return None


def _misdeclared(info: ObjectInfo, declared: Declared) -> str:
    line = f"{info.name} is declared {declared.origin} (by {declared.pattern!r}), but "
    if declared.origin is not Origin.REPLAY:
        return line + "gradients advance it: declare it replay"
    if info.section == "model":
        return line + "it is not trained: declare it constant (frozen) or side_channel (a buffer that changes)"
    return line + "gradients do not determine it: declare it side_channel"


def _replayed(inventory: Inventory, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return how the rank's optimizer state differs in form from the shadow's, None where it does not."""
    theirs = inventory.optimizer_tensors
    for name, tensor in tensors.items():
        if name.startswith("optim/"):
            info = theirs.get(name)
            if info is None:
                return f"it has no optimizer state {name.removeprefix('optim/')}, which the shadow keeps"
            if not info.is_like(tensor):
                mine = f"{tensor.dtype} {tuple(tensor.shape)}"
                return f"{info.name} is {info.dtype} {info.shape} there, {mine} in the shadow"
    strange = [info.name for name, info in theirs.items() if name not in tensors]
    return f"its {strange[0]} has no counterpart in the shadow's optimizer" if strange else None


def split_constants(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return what the replay starts from (``param/...``, ``optim/...``) and the constant objects (``state/...``)."""
    constants = {name: tensor for name, tensor in state.items() if name.startswith(SHARED_PREFIX)}
    return {name: tensor for name, tensor in state.items() if name not in constants}, constants


def check_constants(needed: Mapping[str, ObjectInfo], given: Mapping[str, torch.Tensor]) -> None:
    """Check that `given` are the constant objects of the trainer, none missing, with the announced values.

    Raises:
        ShadowError: one is missing, not asked for, or has another form or value than announced.
    """
    for name, info in needed.items():
        tensor = given.get(name)
        if tensor is None:
            raise invalid("data", f"{info.name} is declared constant, but tensor {name!r} is missing")
        if info.kind == "tensor" and not info.is_like(tensor):
            raise invalid("data", f"tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, announced as {info.dtype} "
                                  f"{info.shape}")  # fmt: skip
        if tensor_digest(tensor) != info.digest:
            raise invalid("data", f"tensor {name!r} has another value than the trainer announced")
    strange = sorted(set(given) - set(needed))
    if strange:
        raise invalid("data", f"tensor {strange[0]!r} is not an object that the job declares constant")


def tensor_digest(tensor: torch.Tensor) -> bytes:
    """Return the SHA-256 over form and bytes of `tensor` (`checkmate_common.recovery.state.value_digest`)."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return value_digest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
