"""Side-channel records of steps: checked, kept until all ranks' are there, compared when they come again."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict

from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.errors import check_step, invalid, wrong_state
from shadow_rx.trainer.description import OptimizerPlan, Options
from shadow_rx.trainer.inventory import Inventory, parse_inventory
from shadow_rx.trainer.rank_step import RankStep, group_options, parse_record

_REMEMBERED_STEPS = 1024
"""Steps for which a repeated record is still compared with the first one, each 32 bytes a rank."""
_INVENTORIES = 4
"""Different lists of state objects, the newest ones, that are kept for each rank."""


class RecordBook:
    """Records of one epoch by step and rank.

    Memory: the contents of at most `pending` steps that are not applied yet, plus 32 bytes a rank and step
    for comparison, plus a few lists of state objects a rank.
    """

    def __init__(self, plan: OptimizerPlan, ranks: int, first_step: int, pending: int, digests: bool) -> None:
        """Keep records of steps from `first_step` on.

        Args:
            plan: the optimizer that options are checked with.
            ranks: records that make a step complete.
            first_step: first step of the epoch.
            pending: most steps, counted from the oldest one that is not applied, whose records are kept.
            digests: whether every record has to carry the digests of parameters and optimizer state.
        """
        self._plans: list[tuple[int, OptimizerPlan]] = [(first_step, plan)]
        self._ranks = ranks
        self._first_step = first_step
        self._pending = pending
        self._digests = digests
        self._steps: dict[int, dict[int, RankStep]] = {}
        self._seen: dict[int, dict[int, bytes]] = {}
        self._forgotten = first_step - 1
        self._next_step = first_step
        self._checked: dict[tuple[int, int, str], Options] = {}
        self._inventories: dict[int, OrderedDict[bytes, Inventory]] = {}
        self.refused_step: int | None = None
        """Oldest step whose record was not kept because too many were pending."""
        self._last_refused = 0

    def change(self, step: int, plan: OptimizerPlan) -> None:
        """Check records of steps from `step` on with `plan`; those that came before are dropped."""
        self._plans.append((step, plan))
        for early in [known for known in self._seen if known >= step]:
            self._steps.pop(early, None)
            del self._seen[early]

    def _plan(self, step: int) -> OptimizerPlan:
        return self._plans[max(0, bisect_right(self._plans, step, key=lambda item: item[0]) - 1)][1]

    def add(self, message: pb.StepRecord) -> bool:
        """Keep a record; tell whether it is new (an equal one is not).

        Raises:
            ShadowError: a field is wrong, or another record of this rank and step came before.
        """
        record, inventory = self._parse(message)
        step = message.step
        if inventory is not None:
            # Kept also where the record is not: records of later steps refer to it.
            known = self._inventories.setdefault(record.rank, OrderedDict())
            known[inventory.digest] = inventory
            known.move_to_end(inventory.digest)
            while len(known) > _INVENTORIES:
                known.popitem(last=False)
        if step >= self._next_step + self._pending:
            self.refused_step = min(step, self.refused_step or step)
            self._last_refused = max(step, self._last_refused)
            return True
        if step <= self._forgotten or self._repeats(message, record.rank) or step < self._next_step:
            return False
        self._steps.setdefault(step, {})[record.rank] = record
        return True

    def _repeats(self, message: pb.StepRecord, rank: int) -> bool:
        """Tell whether the record was here before; refuse it where another one was."""
        step = message.step
        told = pb.StepRecord()
        told.CopyFrom(message)
        # A repeated record may list the state objects that the first one only referred to.
        told.ClearField("state_objects")
        fingerprint = hashlib.sha256(told.SerializeToString(deterministic=True)).digest()
        known = self._seen.setdefault(step, {}).get(rank)
        if known is not None:
            if known != fingerprint:
                raise wrong_state("step", f"rank {rank} told another record of step {step} before")
            return True
        self._seen[step][rank] = fingerprint
        return False

    def _parse(self, message: pb.StepRecord) -> tuple[RankStep, Inventory | None]:
        step = message.step
        if step < self._first_step:
            raise invalid("step", f"{step} is before this epoch's first step {self._first_step}")
        check_step("step", step)
        if message.rank >= self._ranks:
            raise invalid("rank", f"{message.rank}, expected 0..{self._ranks - 1}")
        plan = self._plan(step)
        found, groups = len(message.group_options_json), len(plan.groups)
        if found != groups:
            raise invalid("group_options_json", f"{found} entries, the optimizer has {groups} groups")
        texts = enumerate(message.group_options_json)
        record = parse_record(message, tuple(self._options(plan, index, text) for index, text in texts))
        for name in ("parameter_digest", "optimizer_digest") if self._digests else ():
            if not getattr(message, name):
                raise invalid(name, "is empty, but the job asks for digests")
        inventory = parse_inventory(message.state_objects, "state_objects") if message.state_objects else None
        if inventory is not None and inventory.digest != message.state_digest:
            raise invalid("state_digest", "is not that of state_objects")
        return record, inventory

    def _options(self, plan: OptimizerPlan, index: int, text: str) -> Options:
        # All ranks send the same text, and often one step sends what the last one did: check it once.
        key = (id(plan), index, text)
        options = self._checked.get(key)
        if options is None:
            options = group_options(plan, index, text)
            if len(self._checked) >= 2 * len(plan.groups) + 16:
                self._checked.clear()
            self._checked[key] = options
        return options

    def inventory(self, record: RankStep) -> Inventory | None:
        """Return the state objects that `record` refers to, None when its rank never listed them."""
        listed = self._inventories.get(record.rank)
        return None if listed is None else listed.get(record.state_digest)

    def listed(self, step: int) -> list[tuple[RankStep, Inventory | None]]:
        """Return the records of `step` that are there, in rank order, each with the state objects it refers to."""
        return [(record, self.inventory(record)) for record in self.get(step)]

    def unlisted(self, step: int) -> list[int]:
        """Return the ranks whose record of `step` refers to a list of state objects that did not arrive."""
        return [record.rank for record, listed in self.listed(step) if record.state_digest and listed is None]

    def wants_list(self, rank: int) -> bool:
        """Tell whether the newest record of `rank` that is kept refers to a list that did not arrive."""
        newest = max((step for step, records in self._steps.items() if rank in records), default=None)
        return newest is not None and rank in self.unlisted(newest)

    def missing(self, step: int) -> list[int]:
        """Return the ranks whose record of `step` is not there."""
        present = self._steps.get(step, {})
        return [rank for rank in range(self._ranks) if rank not in present]

    def get(self, step: int) -> list[RankStep]:
        """Return the records of `step` that are there, in rank order."""
        return [record for _, record in sorted(self._steps.get(step, {}).items())]

    def release(self, step: int) -> None:
        """Drop the contents of records up to `step`: they are applied, or given up."""
        self._next_step = max(self._next_step, step + 1)
        if self.refused_step is not None:
            self.refused_step = max(self.refused_step, step + 1) if self._last_refused > step else None
        for old in [known for known in self._steps if known <= step]:
            del self._steps[old]
        # Only of steps that are applied: a record that is still needed can never be replaced by another.
        self._forgotten = max(self._forgotten, step - _REMEMBERED_STEPS)
        for old in [known for known in self._seen if known <= self._forgotten]:
            del self._seen[old]

    def drop(self) -> None:
        """Drop all contents and keep none from now on: nothing of this epoch can be applied any more."""
        self._steps.clear()
        self._pending = 0
