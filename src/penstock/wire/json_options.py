"""Queue options in JSON: the fields of `QueueOptions`, with durations as `*_ms`, each held to its range."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct

from penstock import limits
from penstock.model import BACKOFFS, OPTION_RANGES, QueueOptions
from penstock.model_options import OPTION_TEXTS
from penstock.wire.json_shapes import json_name, new_struct

_SECONDS: Final = "_seconds"
OPTION_NAMES: Final = {json_name(name): name for name in QueueOptions.__struct_fields__}


def _type_of(option: str, hint: Any) -> Any:
    """The type of an option, with its range."""
    if option == "partitions":
        return Annotated[int, Meta(ge=1, le=limits.partitions_max)] | get_args(hint)[1]
    if option not in OPTION_RANGES:
        return hint
    kinds = get_args(hint) or (hint,)
    least, greatest = OPTION_RANGES[option]
    scale = 1000 if option.endswith(_SECONDS) else 1
    number = int if int in kinds else float
    limited: Any = Annotated[number, Meta(ge=number(least * scale), le=number(greatest * scale))]
    return limited | None if type(None) in kinds else limited


def _described(option: str, kind: Any) -> Any:
    return Annotated[kind, Meta(description=OPTION_TEXTS[option])]


_BACKOFF: Any = _described("backoff", Literal[tuple(BACKOFFS)])
_HINTS: Final = get_type_hints(QueueOptions)
_TYPES: Final = {name: _described(option, _type_of(option, _HINTS[option])) for name, option in OPTION_NAMES.items()}

# What a request may set; a field that is not there is left as it is.
OptionsChange: Any = new_struct(
    "OptionsChange",
    "Queue options to set. Durations are in milliseconds.",
    [
        *((name, kind | msgspec.UnsetType, UNSET) for name, kind in _TYPES.items()),
        ("backoff", _BACKOFF | msgspec.UnsetType, UNSET),  # stands for four of them
    ],
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"holds_queue_options": True},  # so that an unknown one is called an option
)

NewQueue: Any = new_struct(
    "NewQueue",
    "The name of the queue to create, and any options.",
    [("name", str)],
    bases=(OptionsChange,),
    kw_only=True,
    forbid_unknown_fields=True,
)
QueueView: Any = new_struct("QueueView", "A queue and all its options.", [("name", str), *_TYPES.items()], kw_only=True)


QueueState: Any = new_struct(
    "QueueState",
    "A queue with its options, and whether delivery or pushes are paused: directly, by its namespace or by the broker.",
    [("paused", bool), ("push_paused", bool)],
    bases=(QueueView,),
    kw_only=True,
)


def state_of(queue: str, options: QueueOptions, *, paused: bool, push_paused: bool) -> Struct:
    """A queue as JSON shows it, with what is paused of it."""
    view = msgspec.structs.asdict(view_of(queue, options))
    state: Struct = QueueState(**view, paused=paused, push_paused=push_paused)
    return state


def changes_of(options: Struct) -> dict[str, Any]:
    """The options that a request sets, as Python names them."""
    values = {option: getattr(options, name) for name, option in {**OPTION_NAMES, "backoff": "backoff"}.items()}
    return {option: _seconds(option, value) for option, value in values.items() if value is not UNSET}


def view_of(queue: str, options: QueueOptions) -> Struct:
    """A queue as JSON shows it."""
    view: Struct = QueueView(
        name=queue, **{name: _milliseconds(option, getattr(options, option)) for name, option in OPTION_NAMES.items()}
    )
    return view


def _seconds(option: str, value: Any) -> Any:
    return value / 1000 if option.endswith(_SECONDS) and value is not None else value


def _milliseconds(option: str, value: Any) -> Any:
    return value * 1000 if option.endswith(_SECONDS) and value is not None else value
