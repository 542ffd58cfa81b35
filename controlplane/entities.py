"""Entities of a switch as frozen values: table entries, multicast groups, digest settings.

All keys of the data plane are exact, so a field is a plain integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from p4src.names import Action, Param, Table

Fields = tuple[tuple[str, int], ...]
"""(name, value) pairs, sorted by name."""
Key = tuple[str, ...] | tuple[str, int] | tuple[str, str, Fields]
"""Identity of an entity on the switch."""


_Name = TypeVar("_Name", bound=str)
_Param = TypeVar("_Param", bound=str)


def fields_of(values: Mapping[_Name, int]) -> Fields:
    """Return `values` as sorted pairs (enum names become plain strings)."""
    return tuple(sorted((str(name), value) for name, value in values.items()))


@dataclass(frozen=True, order=True)
class TableEntry:
    """One entry of a table."""

    table: str
    """Name of the table."""
    match: Fields
    """Its key."""
    action: str
    """Name of the action."""
    params: Fields = ()
    """The action's parameters."""

    @classmethod
    def make(
        cls, table: str, match: Mapping[_Name, int], action: str, params: Mapping[_Param, int] | None = None
    ) -> TableEntry:
        """Build an entry from mappings."""
        return cls(str(table), fields_of(match), str(action), fields_of(params) if params else ())

    @property
    def key(self) -> Key:
        """Identity on the switch."""
        return ("entry", self.table, self.match)

    def field(self, name: str) -> int:
        """Return a field of the key; KeyError when there is none."""
        return dict(self.match)[name]

    def param(self, name: str) -> int:
        """Return a parameter of the action; KeyError when there is none."""
        return dict(self.params)[name]

    @property
    def group(self) -> int | None:
        """The multicast group that the entry sends to, None if it names none (0 is "no group")."""
        return dict(self.params).get(Param.GROUP) or None


@dataclass(frozen=True, order=True)
class Replica:
    """One copy that a multicast group makes."""

    port: int
    """Switch port."""
    rid: int
    """Replica id: 0 is the original packet."""


@dataclass(frozen=True)
class MulticastGroup:
    """A multicast group."""

    id: int
    """Number, from 1."""
    replicas: frozenset[Replica]
    """Its copies."""

    @property
    def key(self) -> Key:
        """Identity on the switch."""
        return ("group", self.id)


@dataclass(frozen=True)
class DigestConfig:
    """Whether and how a digest reaches the controller."""

    digest: str
    """Name of the digest."""
    max_list_size: int
    """Maximum number of messages in one list."""
    max_timeout_ns: int
    """How long a message may wait for others, in nanoseconds; 0 sends at once."""
    ack_timeout_ns: int
    """How long equal messages are suppressed if the list is not acknowledged, in nanoseconds; 0: never."""

    @property
    def key(self) -> Key:
        """Identity on the switch."""
        return ("digest", self.digest)


Entity = TableEntry | MulticastGroup | DigestConfig


@dataclass(frozen=True)
class SwitchState:
    """Everything that a controller can write to a switch, as a set."""

    entities: frozenset[Entity] = frozenset()
    """The entities; no two have the same key."""

    def __post_init__(self) -> None:
        """Check the keys.

        Raises:
            ValueError: two entities have the same key.
        """
        if len(self.by_key) != len(self.entities):
            duplicate = next(entity for entity in self.entities if self.by_key[entity.key] != entity)
            raise ValueError(f"two entities have the key {duplicate.key}")

    @classmethod
    def of(cls, entities: Iterable[Entity]) -> SwitchState:
        """Return the state that holds `entities`."""
        return cls(frozenset(entities))

    @cached_property
    def by_key(self) -> dict[Key, Entity]:
        """The entities by their keys."""
        return {entity.key: entity for entity in self.entities}

    def table(self, name: str) -> tuple[TableEntry, ...]:
        """Return the entries of a table, sorted."""
        found = (entity for entity in self.entities if isinstance(entity, TableEntry) and entity.table == name)
        return tuple(sorted(found))

    def groups(self) -> tuple[MulticastGroup, ...]:
        """Return the multicast groups by number."""
        return tuple(sorted((e for e in self.entities if isinstance(e, MulticastGroup)), key=lambda group: group.id))

    def digests(self) -> tuple[DigestConfig, ...]:
        """Return the digest settings by name."""
        return tuple(sorted((e for e in self.entities if isinstance(e, DigestConfig)), key=lambda d: d.digest))


def is_flow_base(entity: Entity) -> bool:
    """Return whether `entity` is an entry of `flow_base`, which the running controller owns."""
    return isinstance(entity, TableEntry) and entity.table == Table.FLOW_BASE


def is_replicate(entity: Entity) -> bool:
    """Return whether `entity` is a `replicate` entry, which binds a connection to a flow."""
    return isinstance(entity, TableEntry) and entity.table == Table.REPLICATE and entity.action == Action.REPLICATE_FLOW
