"""Match keys and actions: conversion between P4Runtime messages and the records of the execution core.

P4Runtime specification, sections "Match Format" and "Action Specification".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from finsy.proto import p4r

from softswitch.p4rt.bytestrings import decode_unsigned, encode_unsigned
from softswitch.p4rt.errors import Code, P4RuntimeError, invalid
from softswitch.p4rt.schema import ActionInfo, MatchField, MatchKind, Schema, Scope, TableInfo
from softswitch.state import ActionCall, Exact, Lpm, MatchKey, Range, Ternary


def parse_match(table: TableInfo, matches: Iterable[p4r.FieldMatch]) -> tuple[MatchKey, ...]:
    """Return the key in `matches`, one part per field of the table in key order.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for a field that is unknown, duplicate, of the wrong kind, not in canonical
            form, or missing although exact.
    """
    given: dict[int, p4r.FieldMatch] = {}
    known = {field.id for field in table.fields}
    for match in matches:
        if match.field_id not in known:
            raise invalid(f"table {table.name}: match field id {match.field_id} is not in the key")
        if match.field_id in given:
            raise invalid(f"table {table.name}: match field id {match.field_id} is given twice")
        given[match.field_id] = match
    return tuple(_parse_field(table, field, given.get(field.id)) for field in table.fields)


def check_priority(table: TableInfo, priority: int) -> None:
    """Check the priority of an entry.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT unless it is > 0 if the key needs one, and 0 otherwise.
    """
    if table.needs_priority and priority <= 0:
        raise invalid(f"table {table.name}: priority must be > 0, as the key has a ternary-like field")
    if not table.needs_priority and priority != 0:
        raise invalid(f"table {table.name}: priority must be 0, as no field of the key needs one")


def format_match(table: TableInfo, key: Sequence[MatchKey]) -> list[p4r.FieldMatch]:
    """Return the canonical messages of a key; "don't care" fields are omitted."""
    result: list[p4r.FieldMatch] = []
    for field, part in zip(table.fields, key, strict=True):
        message = _format_field(field, part)
        if message is not None:
            result.append(message)
    return result


def parse_action(schema: Schema, table: TableInfo, action: p4r.TableAction, *, default: bool) -> ActionCall:
    """Return the call that `action` describes, checked against the table.

    Args:
        schema: the program.
        table: the table of the entry.
        action: the message.
        default: whether it is for the default entry (for the scope check).

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for an action that the table lacks, or parameters that are missing, unknown,
            duplicate or too wide; PERMISSION_DENIED for an action outside its scope.
    """
    kind = action.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {table.name}: a direct table takes TableAction.action, not {kind or 'nothing'}")
    scope = table.scopes.get(action.action.action_id)
    if scope is None:
        raise invalid(f"table {table.name}: action id {action.action.action_id} is not an action of the table")
    info = schema.actions[action.action.action_id]
    if scope is (Scope.ENTRY_ONLY if default else Scope.DEFAULT_ONLY):
        where = "as the default action" if default else "in an entry"
        raise P4RuntimeError(Code.PERMISSION_DENIED, f"table {table.name}: action {info.name} must not be used {where}")
    return ActionCall(info.name, _parse_params(info, action.action.params))


def format_action(schema: Schema, call: ActionCall) -> p4r.TableAction:
    """Return the canonical message of a call."""
    info = schema.actions[schema.action_ids[call.name]]
    return p4r.TableAction(
        action=p4r.Action(
            action_id=info.id,
            params=[
                p4r.Action.Param(param_id=param.id, value=encode_unsigned(value))
                for param, value in zip(info.params, call.args, strict=True)
            ],
        )
    )


def _parse_params(info: ActionInfo, params: Iterable[p4r.Action.Param]) -> tuple[int, ...]:
    values: dict[int, bytes] = {}
    known = {param.id for param in info.params}
    for given in params:
        if given.param_id not in known:
            raise invalid(f"action {info.name}: parameter id {given.param_id} is unknown")
        if given.param_id in values:
            raise invalid(f"action {info.name}: parameter id {given.param_id} is given twice")
        values[given.param_id] = given.value
    missing = [param.name for param in info.params if param.id not in values]
    if missing:
        raise invalid(f"action {info.name}: parameters are missing: {', '.join(missing)}")
    return tuple(
        decode_unsigned(values[param.id], param.width, f"action {info.name}: parameter {param.name}")
        for param in info.params
    )


def _parse_field(table: TableInfo, field: MatchField, match: p4r.FieldMatch | None) -> MatchKey:
    what = f"table {table.name}: match field {field.name}"
    full = (1 << field.width) - 1
    if match is None:
        return _dont_care(field, what)
    kind = match.WhichOneof("field_match_type")
    if kind != field.kind.value:
        raise invalid(f"{what}: expected {field.kind.value}, not {kind or 'an unset match'}")
    if field.kind is MatchKind.EXACT:
        return Exact(decode_unsigned(match.exact.value, field.width, what))
    if field.kind is MatchKind.OPTIONAL:
        return Ternary(decode_unsigned(match.optional.value, field.width, what), full)
    if field.kind is MatchKind.LPM:
        value = decode_unsigned(match.lpm.value, field.width, what)
        length = match.lpm.prefix_len
        if not 1 <= length <= field.width:
            raise invalid(f"{what}: prefix_len {length} is not in 1..{field.width}; omit a don't care field")
        if value & ((1 << (field.width - length)) - 1):
            raise invalid(f"{what}: bits below the prefix of {length} must be 0 in {value:#x}")
        return Lpm(value, length)
    if field.kind is MatchKind.TERNARY:
        value = decode_unsigned(match.ternary.value, field.width, what)
        mask = decode_unsigned(match.ternary.mask, field.width, f"{what} (mask)")
        if mask == 0:
            raise invalid(f"{what}: the mask is 0; omit a don't care field")
        if value & ~mask:
            raise invalid(f"{what}: value {value:#x} has bits outside mask {mask:#x}")
        return Ternary(value, mask)
    low = decode_unsigned(match.range.low, field.width, f"{what} (low)")
    high = decode_unsigned(match.range.high, field.width, f"{what} (high)")
    if low > high:
        raise invalid(f"{what}: low {low:#x} is above high {high:#x}")
    if (low, high) == (0, full):
        raise invalid(f"{what}: the range covers every value; omit a don't care field")
    return Range(low, high)


def _dont_care(field: MatchField, what: str) -> MatchKey:
    if field.kind is MatchKind.EXACT:
        raise invalid(f"{what}: an exact field must be given")
    if field.kind is MatchKind.LPM:
        return Lpm(0, 0)
    if field.kind is MatchKind.RANGE:
        return Range(0, (1 << field.width) - 1)
    return Ternary(0, 0)


def _format_field(field: MatchField, part: MatchKey) -> p4r.FieldMatch | None:
    if isinstance(part, Exact):
        return p4r.FieldMatch(field_id=field.id, exact=p4r.FieldMatch.Exact(value=encode_unsigned(part.value)))
    if isinstance(part, Lpm):
        if part.prefix_len == 0:
            return None
        lpm = p4r.FieldMatch.LPM(value=encode_unsigned(part.value), prefix_len=part.prefix_len)
        return p4r.FieldMatch(field_id=field.id, lpm=lpm)
    if isinstance(part, Range):
        if (part.low, part.high) == (0, (1 << field.width) - 1):
            return None
        bounds = p4r.FieldMatch.Range(low=encode_unsigned(part.low), high=encode_unsigned(part.high))
        return p4r.FieldMatch(field_id=field.id, range=bounds)
    if part.mask == 0:
        return None
    if field.kind is MatchKind.OPTIONAL:
        return p4r.FieldMatch(field_id=field.id, optional=p4r.FieldMatch.Optional(value=encode_unsigned(part.value)))
    ternary = p4r.FieldMatch.Ternary(value=encode_unsigned(part.value), mask=encode_unsigned(part.mask))
    return p4r.FieldMatch(field_id=field.id, ternary=ternary)
