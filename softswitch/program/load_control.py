"""Reading the ingress and egress pipelines from the BMv2 JSON."""

from __future__ import annotations

from collections.abc import Mapping

from softswitch.match import Exact, KeySpec, Lpm, MatchKey, MatchKind, Range, Ternary, prefix_mask
from softswitch.program.cursor import Cursor
from softswitch.program.expressions import Expr, FieldRef, ValidRef
from softswitch.program.ir import Action, ConditionNode, ControlNode, Pipeline, TableKey, TableNode
from softswitch.program.limits import MAX_NODES, MAX_PRIMITIVES
from softswitch.program.load_expr import Scope
from softswitch.state import ActionCall, ActionSpec, TableEntry, TableSpec


class PipelineReader:
    """Reads one pipeline: its tables and conditions."""

    def __init__(self, scope: Scope, actions: Mapping[int, Action]) -> None:
        """Read with the names in `scope` and the actions by id."""
        self._scope = scope
        self._actions = actions
        self._tables: set[str] = set()
        self._primitives = 0

    def read(self, node: Cursor) -> Pipeline:
        """Return the pipeline; all references to next nodes are checked."""
        for profile in node.each("action_profiles"):
            raise profile.unsupported("an action profile or action selector")
        for call in node.each("action_calls"):
            raise call.unsupported("a direct action call")
        nodes: dict[str, ControlNode] = {}
        if len(node["tables"]) + len(node["conditionals"]) > MAX_NODES:
            raise node.unsupported(f"a pipeline with more than {MAX_NODES} tables and conditions")
        for table in node["tables"]:
            name = table["name"].new_name(self._tables)  # the control plane does not distinguish the pipelines
            self._tables.add(name)
            nodes[name] = self._table(table)
        for condition in node["conditionals"]:
            nodes[condition["name"].new_name(nodes)] = self._condition(condition)
        first = node["init_table"].name_or_null()
        for target in (first, *(target for item in nodes.values() for target in successors(item))):
            if target is not None and target not in nodes:
                raise node.malformed(f"unknown table or condition {target!r}")
        return Pipeline(node["name"].text(), first, nodes)

    def _condition(self, node: Cursor) -> ConditionNode:
        return ConditionNode(
            node["name"].text(),
            self._scope.condition(node["expression"]),
            node["true_next"].name_or_null(),
            node["false_next"].name_or_null(),
            node.source,
        )

    # -- tables ----------------------------------------------------------------------------------------------

    def _table(self, node: Cursor) -> TableNode:
        name = node["name"].text()
        if node["type"].text() != "simple":
            raise node.unsupported(f"a table of type '{node['type'].text()}'")
        if node.get("direct_meters") is not None:
            raise node.unsupported("a direct meter")
        # `support_timeout` is accepted: entries with an idle timeout are refused when they are written.
        ids: dict[int, None] = {}
        for part in node["action_ids"]:
            action_id = part.integer()
            if action_id not in self._actions:
                raise part.malformed(f"unknown action id {action_id}")
            ids[part.new_id(ids)] = None
            self._primitives += 1 + len(self._actions[action_id].primitives)
            if self._primitives > MAX_PRIMITIVES:
                raise node.unsupported(
                    f"a program whose tables have more than {MAX_PRIMITIVES} primitives in all actions"
                )
        action_ids = tuple(ids)
        names = [self._actions[action_id].name for action_id in action_ids]
        keys, specs = self._keys(node)
        next_hit_miss, next_by_action = self._next(node, names)
        none_node = node.get("base_default_next")
        next_none = None if none_node is None else none_node.text()
        if next_hit_miss is not None:
            next_none = next_hit_miss[1]
        return TableNode(
            name,
            self._spec(node, specs, action_ids),
            keys,
            action_ids,
            next_by_action,
            next_hit_miss,
            next_none,
            node.source,
        )

    def _keys(self, node: Cursor) -> tuple[tuple[TableKey, ...], tuple[KeySpec, ...]]:
        keys: list[TableKey] = []
        specs: list[KeySpec] = []
        for part in node["key"]:
            expr, width = self._key_target(part)
            mask_node = part.get("mask")
            mask = None if mask_node is None else mask_node.hexadecimal()
            label = part.get("name")
            name = str(expr) if label is None else label.text()
            keys.append(TableKey(expr, width, mask))
            specs.append(KeySpec(name, width, self._kind(part["match_type"]), mask))
        return tuple(keys), tuple(specs)

    def _key_target(self, node: Cursor) -> tuple[Expr, int]:
        if node["match_type"].text() == "valid":
            header = node["target"].text()
            if header not in self._scope.headers:
                raise node.malformed(f"unknown header {header!r}")
            return ValidRef(header), 1
        ref = self._scope.field_ref(node["target"])
        if not isinstance(ref, FieldRef):
            return ref, 1
        declared = self._scope.headers[ref.header].type.field(ref.field)
        if declared.varbit:
            raise node.unsupported("matching on a varbit field")
        return ref, declared.width

    def _kind(self, node: Cursor) -> MatchKind:
        kinds = {"valid": MatchKind.EXACT, **{kind.value: kind for kind in MatchKind}}
        if node.text() not in kinds:
            raise node.unsupported(f"the match kind '{node.text()}'")
        return kinds[node.text()]

    def _next(
        self, node: Cursor, names: list[str]
    ) -> tuple[tuple[str | None, str | None] | None, tuple[str | None, ...]]:
        table = node["next_tables"]
        if "__HIT__" in table.keys() or "__MISS__" in table.keys():  # noqa: SIM118 (a method of Cursor)
            return (table["__HIT__"].name_or_null(), table["__MISS__"].name_or_null()), (None,) * len(names)
        return None, tuple(table[name].name_or_null() for name in names)

    def _spec(self, node: Cursor, keys: tuple[KeySpec, ...], action_ids: tuple[int, ...]) -> TableSpec:
        default: ActionCall | None = None
        const_default = False
        default_node = node.get("default_entry")
        if default_node is not None:
            default = self._call(default_node, action_ids)
            const_default = any(
                flag is not None and flag.flag()
                for flag in (default_node.get("action_const"), default_node.get("action_entry_const"))
            )
        counters = node.get("with_counters")
        entries = self._entries(node, keys, action_ids)
        const = node.get("entries") is not None
        return TableSpec(
            name=node["name"].text(),
            match_type=self._kind(node["match_type"]),
            keys=keys,
            actions=tuple(self._action_spec(action_id) for action_id in action_ids),
            size=len(entries) if const else node["max_size"].size(),
            const=const,
            const_default=const_default,
            default=default,
            direct_counter=counters is not None and counters.flag(),
            entries=entries,
        )

    def _action_spec(self, action_id: int) -> ActionSpec:
        action = self._actions[action_id]
        return ActionSpec(action.name, tuple(param.width for param in action.params))

    def _call(self, node: Cursor, action_ids: tuple[int, ...]) -> ActionCall:
        action_id = node["action_id"].integer()
        if action_id not in action_ids:
            raise node.malformed(f"the table has no action with id {action_id}")
        action = self._actions[action_id]
        data = node.each("action_data")
        if len(data) != len(action.params):
            raise node.malformed(f"action {action.name} takes {len(action.params)} arguments")
        args = tuple(
            arg.hexadecimal() & ((1 << param.width) - 1) for arg, param in zip(data, action.params, strict=True)
        )
        return ActionCall(action.name, args)

    def _entries(self, node: Cursor, keys: tuple[KeySpec, ...], action_ids: tuple[int, ...]) -> tuple[TableEntry, ...]:
        given = node.each("entries")
        with_priority = self._kind(node["match_type"]) in (MatchKind.TERNARY, MatchKind.RANGE)
        numbers = [item["priority"].integer() for item in given] if with_priority else [0] * len(given)
        entries: list[TableEntry] = []
        for item, number in zip(given, numbers, strict=True):
            parts = list(item["match_key"])
            if len(parts) != len(keys):
                raise item.malformed(f"{len(parts)} match fields for a key of {len(keys)}")
            match = tuple(self._match(part, spec) for part, spec in zip(parts, keys, strict=True))
            # In the JSON the smallest priority wins, in P4Runtime the largest.
            priority = max(numbers) + 1 - number if with_priority else 0
            entries.append(TableEntry(match, priority, self._call(item["action_entry"], action_ids)))
        return tuple(entries)

    def _match(self, node: Cursor, spec: KeySpec) -> MatchKey:
        if node["match_type"].text() == "valid":
            return Exact(int(node["key"].flag()))
        kind = self._kind(node["match_type"])
        if kind is not spec.kind:
            raise node.malformed(f"a {kind.value} match for the {spec.kind.value} field {spec.name}")
        key: MatchKey
        if kind is MatchKind.EXACT:
            key = Exact(node["key"].hexadecimal())
        elif kind is MatchKind.LPM:
            length = node["prefix_length"].integer()
            key = Lpm(node["key"].hexadecimal() & prefix_mask(length, spec.width), length)
        elif kind is MatchKind.TERNARY:
            mask = node["mask"].hexadecimal()
            key = Ternary(node["key"].hexadecimal() & mask, mask)
        else:
            key = Range(node["start"].hexadecimal(), node["end"].hexadecimal())
        problem = spec.problem(key)
        if problem is not None:
            raise node.malformed(problem)
        return key


def successors(node: ControlNode) -> tuple[str | None, ...]:
    """Return the nodes that can follow `node`, each once; None is the end of the pipeline."""
    if isinstance(node, ConditionNode):
        targets: tuple[str | None, ...] = (node.next_true, node.next_false)
    elif node.next_hit_miss is not None:
        targets = node.next_hit_miss
    else:
        targets = node.next_by_action
        if node.spec.default is None:
            targets = (*targets, node.next_none)
    return tuple(dict.fromkeys(targets))
