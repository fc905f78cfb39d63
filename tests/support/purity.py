"""Decisions alter nothing: every `decide_*` of the package, with the whole state compared before and after.

The state is walked as it is, object by object, so that nothing that is added later is left out: queues, groups,
buckets, timers, leases, counters. Batches are left out: they do not change, and remember what was read from them.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import numpy as np

from penstock.batch import Batch
from penstock.delivery.core import DeliveryState

# Deciding what has expired takes the due entries from the heap of expiries, which is an index: the engine counts it as
# part of the change that follows.
USES_AN_INDEX: Final = {"decide_expired"}
LEFT_OUT: Final = {"_appliers", "_observers", "columns"}  # functions; and columns of segments that were loaded
PLAIN: Final = (int, float, str, bytes, bool, type(None), type, range)


def portrait_of(thing: Any) -> Any:
    """All that an object consists of, as values that compare."""
    return _walk(thing, {})


def _walk(thing: Any, seen: dict[int, int]) -> Any:
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, Batch | memoryview | random.Random) or callable(thing):
        return id(thing)
    if id(thing) in seen:
        return ("again", seen[id(thing)])
    seen[id(thing)] = len(seen)
    if isinstance(thing, np.ndarray):
        return thing.tobytes()
    if isinstance(thing, bytearray):
        return bytes(thing)
    if isinstance(thing, dict):
        return [(_walk(key, seen), _walk(value, seen)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | deque):
        return [_walk(each, seen) for each in thing]
    if isinstance(thing, set | frozenset):
        return {repr(_walk(each, dict(seen))) for each in thing}
    return (type(thing).__name__, [(name, _walk(value, seen)) for name, value in _attributes(thing)])


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    names = list(getattr(thing, "__dict__", ()))
    names += getattr(type(thing), "__struct_fields__", ())
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    for name in dict.fromkeys(names):
        if name not in LEFT_OUT and not name.startswith("__") and hasattr(thing, name):
            yield name, getattr(thing, name)


@contextmanager
def pure_decisions(core: Callable[[], DeliveryState]) -> Iterator[dict[str, int]]:
    """Compare the state around every decision; yields how often each was made."""
    made: dict[str, int] = {}
    put_back: list[tuple[Any, str, Any]] = []
    wrapped: dict[Any, Any] = {}
    for module in [each for name, each in sys.modules.items() if name.startswith("penstock.") and each is not None]:
        for name, function in list(vars(module).items()):
            if name.startswith("decide_") and callable(function) and name not in USES_AN_INDEX:
                if function not in wrapped:
                    wrapped[function] = _watched(name, function, core, made)
                put_back.append((module, name, function))
                setattr(module, name, wrapped[function])
    try:
        yield made
    finally:
        for module, name, function in put_back:
            setattr(module, name, function)


def _watched(name: str, function: Any, core: Callable[[], DeliveryState], made: dict[str, int]) -> Any:
    @wraps(function)
    def decide(*arguments: Any, **options: Any) -> Any:
        before = portrait_of(core())
        made[name] = made.get(name, 0) + 1
        try:
            return function(*arguments, **options)
        finally:
            after = portrait_of(core())
            assert before == after, f"{name} has altered the state: {difference(before, after)}"

    return decide


def difference(before: Any, after: Any, path: str = "") -> str:
    """Where two portraits differ first."""
    if type(before) is type(after) and isinstance(before, list | tuple):
        if len(before) != len(after):
            return f"{path}: {len(before)} beside {len(after)}: {before!r:.200} {after!r:.200}"
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            if one != other:
                label = one[0] if isinstance(one, tuple) and one and isinstance(one[0], str) else index
                return difference(one, other, f"{path}/{label}")
    return f"{path}: {before!r:.200} became {after!r:.200}"
