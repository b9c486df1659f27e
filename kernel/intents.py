"""What an intent may say, and what a registration means for it: the rules that request side and dispatcher share.

check_carries  can the plan's input carry what an intent needs at all
check_intent   may this stored input be submitted for this round at all (req-input-verify)
register       the one way in which either side submits it
verdict        after start_or_resume: confirm, keep pending, or refuse (T-03, DECISIONS detail 8)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import inspect

from kernel.codec import decode, encode
from kernel.definition import Plan
from kernel.dispatch import ROUND_FIELD, Intent, Snapshot, rounds_of
from kernel.errors import BadReturn, CheckpointError, InvalidDefinition, InvalidInput, InvalidIntent, UnknownVersion
from kernel.ids import IdSource, check_id
from kernel.records import Instance

OBJECT_FIELD = "object_id"
"""The field of an input that names its object, whatever the objects' own key is called."""
TEXT_CHARACTERS_MAX = 1_000
LIST_ITEMS_MAX = 100

Verdict = Literal["confirm", "wait", "refuse"]


class Registrar(Protocol):
    """What registering needs of `kernel.client.Client`."""

    def start_or_resume(
        self, plan: Plan, *, biz_key: str, input: Any, priority: int | str, before_write: Callable[[], None]
    ) -> Any: ...


class Registration(msgspec.Struct, frozen=True):
    """What submitting an intent came to. `branch` is that of start_or_resume, where `failed` is a round that was
    registered before and has failed since."""

    verdict: Verdict
    branch: str
    instance: Instance


_REGISTERED = ("created", "replayed", "failed")
_LIVE = ("running", "waiting", "parked")
_ENDED = ("completed", "canceled")
_NUMBERED = re.compile(r"f([1-9][0-9]{0,8})-[0-9a-f]+")


def fresh_round(ids: IdSource, previous: str | None = None) -> str:
    """The token of the next round, `f<n>-<random>`: the number is for people, the rest makes it one of a kind."""
    known = _NUMBERED.fullmatch(previous or "")
    number = 1 if previous is None else 2 if known is None else int(known[1]) + 1
    return f"f{number}-{ids.token()[:16]}"


def check_intent(intent: Intent, plan: Plan, object_id: str, *, key: str = OBJECT_FIELD) -> Any:
    """The decoded input of an intent that may be submitted. Raises InvalidIntent with one line that says why not.

    The input must serve the intent's own round, name this object wherever it names one (in the field `object_id` or
    in that of the objects' own `key`), and be of the plan's type; every identity field of the plan must be a part of
    the biz_key, or the object's id. So an old snapshot, or one of another object, never registers anything
    (req-input-verify).
    """
    where = f"intent of {object_id!r}"
    if intent.type != plan.type:
        raise InvalidIntent(f"{where}: is of type {intent.type!r}, the plan of {plan.type!r}")
    check_id(intent.biz_key, f"{where}: biz_key")
    check_id(intent.fencing_token, f"{where}: {ROUND_FIELD}")
    try:
        value: Any = decode(intent.input, Any, f"{where}: input")
        plan.check_input(intent.input)
    except (CheckpointError, UnknownVersion, InvalidInput) as error:
        raise InvalidIntent(str(error)) from None
    if not isinstance(value, Mapping):
        raise InvalidIntent(f"{where}: its input has no named fields, so no {ROUND_FIELD}")
    if value.get(ROUND_FIELD) != intent.fencing_token:
        raise InvalidIntent(f"{where}: its input serves another round than {intent.fencing_token!r}")
    for field in dict.fromkeys((OBJECT_FIELD, key)):
        if value.get(field, object_id) != object_id:
            raise InvalidIntent(f"{where}: its input names another object in {field!r}")
    for field in plan.identity:
        if field not in value:
            raise InvalidIntent(f"{where}: its input lacks the identity field {field!r}")
        identity = str(value[field])
        if identity != object_id and f":{identity}:" not in f":{intent.biz_key}:":
            raise InvalidIntent(f"{where}: the identity field {field!r} of its input is no part of the biz_key")
    return value


def check_carries(plan: Plan, key: str) -> None:
    """Refuse a plan whose declared input has no field for the round, or, where the objects have a `key` of their own,
    none for the id: the activity would never see it. Raises InvalidDefinition."""
    named = _fields_of(plan.input)
    if named is None:
        return
    if ROUND_FIELD not in named:
        raise InvalidDefinition(f"{plan.type}: its input has no field {ROUND_FIELD!r}, which requests for objects fill")
    if key != OBJECT_FIELD and not {OBJECT_FIELD, key} & named:
        raise InvalidDefinition(f"{plan.type}: its input has no field {key!r} or {OBJECT_FIELD!r} to name its object")


def _fields_of(type_: Any) -> set[str] | None:
    """The names under which fields of a type are encoded; None for a type that does not say, as a map."""
    if type_ is None:
        return None
    info = inspect.type_info(type_)
    if isinstance(info, inspect.UnionType):
        known = [named for one in get_args(type_) if one is not NoneType and (named := _fields_of(one)) is not None]
        return set.intersection(*known) if known else None
    fields = getattr(info, "fields", None)
    return None if fields is None else {getattr(field, "encode_name", field.name) for field in fields}


def register(
    client: Registrar,
    plan: Plan,
    intent: Intent,
    object_id: str,
    *,
    key: str = OBJECT_FIELD,
    before_write: Callable[[], None] = lambda: None,
) -> Registration:
    """Submit the stored input of an intent byte for byte, and say what the intent becomes. Raises InvalidIntent before
    anything is sent, and whatever start_or_resume or `before_write` raises: then the intent stays as it is. `key` is
    the field in which these objects have their id.

    A round that was registered by somebody who died, and has failed since, is confirmed and not run once more: only
    its user starts a failed object over (req-two-failures).
    """
    check_intent(intent, plan, object_id, key=key)
    handle = client.start_or_resume(
        plan,
        biz_key=intent.biz_key,
        input=Snapshot(intent.input),
        priority=intent.priority,
        before_write=before_write,
    )
    instance: Instance = handle.instance
    return Registration(verdict(handle.branch, instance, intent.fencing_token), handle.branch, instance)


def verdict(branch: str, instance: Instance, fencing_token: str) -> Verdict:
    """What the answer of start_or_resume (`Handle.branch`, `Handle.instance`) means for the intent of a round.

    confirm: this round is registered, now or before, whatever became of it since. wait: an older round still lives;
    the intent stays pending (sor-failing-keeps-pending, sor-old-input-guard). refuse: it can never be registered,
    because another round has ended for good or the Definition refuses the replay.

    An instance whose input names no round was not started for a business object, but by its key. It counts as the
    same for an object in its first round, which finds its work under way; not for one that has been in a round
    before, because nothing would run for the new one.
    """
    if branch in _REGISTERED:
        return "confirm"
    served = rounds_of(instance)
    same = fencing_token in served or (not served and _is_first(fencing_token))
    if branch in _LIVE:
        return "confirm" if same else "wait"
    if branch in _ENDED:
        return "confirm" if same else "refuse"
    return "refuse" if branch == "definition_mismatch" else "wait"


def _is_first(fencing_token: str) -> bool:
    """Whether the object may have been in no round before. A source with tokens of its own does not say."""
    known = _NUMBERED.fullmatch(fencing_token)
    return known is None or known[1] == "1"


def snapshot(value: Any, fencing_token: str, what: str, bytes_max: int) -> bytes:
    """The input of a round as it is stored: `value` with the round filled in, encoded once for every path.

    It holds stable identities and decisions made at entry only: text, numbers, booleans, and short lists of them
    (req-input-two-kinds, req-input-small). Raises InvalidInput or TooLarge naming the field.
    """
    plain = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    if not isinstance(plain, Mapping):
        raise InvalidInput(f"{what}: must have named fields, is {type(value).__name__}")
    fields = {**plain, ROUND_FIELD: fencing_token}
    for name, item in fields.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{what}: the name of every field must be text, not {type(name).__name__}")
        _check_small(item, f"{what}: {name}")
    try:
        return encode(fields, what, bytes_max)
    except BadReturn as error:
        raise InvalidInput(str(error)) from None


def _check_small(value: Any, what: str) -> None:
    items = value if isinstance(value, list | tuple) else (value,)
    if len(items) > LIST_ITEMS_MAX:
        raise InvalidInput(f"{what}: a list has at most {LIST_ITEMS_MAX} items, this one {len(items)}")
    for item in items:
        if item is not None and not isinstance(item, str | int | float):
            raise InvalidInput(f"{what}: holds text, numbers, booleans or a list of them, not {type(item).__name__}")
        if isinstance(item, str) and len(item) > TEXT_CHARACTERS_MAX:
            raise InvalidInput(
                f"{what}: has {len(item)} characters, at most {TEXT_CHARACTERS_MAX}; store content, pass its id"
            )
