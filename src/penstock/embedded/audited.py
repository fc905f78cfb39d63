"""Which operations the audit log records, and what it keeps of their arguments: never payloads, never secrets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from penstock.delivery.entries import OperationSet
from penstock.model import MessageId
from penstock.model_audit import Caller
from penstock.operations import Action, Operation
from penstock.shard.audit import Draft
from penstock.shard.bulk.book import view_of

EMBEDDED: Final = Caller("local", protocol="embedded")  # whoever is in the same process

TEXT_LENGTH_MAX: Final = 200
ITEMS_MAX: Final = 20  # of a list or a mapping
DEPTH_MAX: Final = 3
# Names of fields that hold what users store, or what proves who they are.
HIDDEN: Final = (
    "token",
    "secret",
    "password",
    "passphrase",
    "proof",
    "credential",
    "private",
    "payload",
    "header",
    "argument",
)
HIDDEN_NAMES: Final = frozenset({
    "args", "kwargs", "batch", "data", "key", "code", "result", "progress", "error_contains", "text",
})  # fmt: skip


def is_recorded(operation: Operation[Any]) -> bool:
    """Whether each execution has a record of its own: changes of queues, of the broker and of who may do what."""
    spec = operation.spec
    if spec.action not in (Action.MANAGE, Action.OPERATE) or is_gathered(operation):
        return False
    return not getattr(getattr(operation, "options", None), "dry_run", False)


def is_gathered(operation: Operation[Any]) -> bool:
    """Whether executions are counted, one record for many: exports, and looks at the broker as a whole."""
    spec = operation.spec
    return spec.action is Action.EXPORT or (spec.action is Action.OPERATE and spec.method == "GET")


def draft_of(operation: Operation[Any], caller: Caller) -> Draft:
    """The record of an operation."""
    queue = min((name for name in operation.queues() if name), default="")
    return Draft(caller, operation.spec.name, queue, arguments_of(operation))


def ended_draft(operation: OperationSet) -> Draft:
    """The record of the end of an operation on many things, with what it came to."""
    about = {"operation_id": operation.operation_id, **counts_of(operation)}
    return Draft(Caller(operation.who or EMBEDDED.who), "end_operation", view_of(operation).queue or "", about)


def counts_of(operation: OperationSet) -> dict[str, Any]:
    """What an operation does, and how far it is."""
    view = view_of(operation)
    return {"action": operation.action, "matched": view.matched, "done": view.done, "failed": view.failed}


def arguments_of(operation: Operation[Any]) -> dict[str, Any]:
    """The arguments as they are kept, apart from those that say nothing."""
    shown = _shown_fields({name: getattr(operation, name) for name in operation.__struct_fields__}, DEPTH_MAX)
    shown.pop("queue", None)
    return shown


def _shown_fields(fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    shown = {}
    for name, value in list(fields.items())[:ITEMS_MAX]:
        if value not in (None, "", (), [], {}) and not _is_hidden(str(name)):
            shown[_cut(str(name))] = _shown(value, depth - 1)
    return shown


def _is_hidden(name: str) -> bool:
    return name in HIDDEN_NAMES or any(word in name.lower() for word in HIDDEN)


def _shown(value: Any, depth: int) -> Any:
    """A value as JSON, without bytes and not too much of it."""
    if isinstance(value, Enum):
        return _shown(value.value, depth)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, MessageId):
        return str(value)
    if depth <= 0:
        return "…"
    if isinstance(value, msgspec.Struct):
        return _shown_fields(msgspec.structs.asdict(value), depth)
    if isinstance(value, Mapping):
        return _shown_fields(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)
        more = [f"… {len(items) - ITEMS_MAX} more"] if len(items) > ITEMS_MAX else []
        return [_shown(item, depth - 1) for item in items[:ITEMS_MAX]] + more
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + "…"
