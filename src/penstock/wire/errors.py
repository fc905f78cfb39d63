"""Errors on their way to a client, and back into exceptions: one table for every protocol."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock import errors
from penstock.errors import Internal, Moved, PenstockError, PushPaused, RateLimited, Unavailable


class ErrorReply(msgspec.Struct, omit_defaults=True):
    """An error as it travels; `retry_after_seconds` only when waiting helps."""

    code: str
    message: str
    hint: str = ""
    retry_after_seconds: float = 0.0
    address: str = ""  # of the owner, when a spare was asked


# code: (HTTP status, gRPC status). A class that is not listed has the status of its parent.
STATUS: Final[dict[str, tuple[int, str]]] = {
    "error": (500, "INTERNAL"),
    "bad_input": (400, "INVALID_ARGUMENT"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "conflict": (409, "FAILED_PRECONDITION"),
    "queue_not_found": (404, "NOT_FOUND"),
    "queue_exists": (409, "ALREADY_EXISTS"),
    "group_not_found": (404, "NOT_FOUND"),
    "group_exists": (409, "ALREADY_EXISTS"),
    "message_not_found": (404, "NOT_FOUND"),
    "task_not_found": (404, "NOT_FOUND"),
    "schedule_not_found": (404, "NOT_FOUND"),
    "worker_not_found": (404, "NOT_FOUND"),
    "run_not_found": (404, "NOT_FOUND"),
    "connection_not_found": (404, "NOT_FOUND"),
    "operation_not_found": (404, "NOT_FOUND"),
    "access_not_found": (404, "NOT_FOUND"),
    "task": (409, "FAILED_PRECONDITION"),
    "queue_full": (429, "RESOURCE_EXHAUSTED"),
    "rate_limited": (429, "RESOURCE_EXHAUSTED"),
    "push_paused": (503, "UNAVAILABLE"),
    "closed": (503, "UNAVAILABLE"),
    "access": (403, "PERMISSION_DENIED"),
    "not_authenticated": (401, "UNAUTHENTICATED"),
    "server": (500, "INTERNAL"),
    "unavailable": (503, "UNAVAILABLE"),
    "moved": (421, "UNAVAILABLE"),
    "storage": (503, "UNAVAILABLE"),
    "disk_full": (507, "RESOURCE_EXHAUSTED"),
    "damaged": (500, "DATA_LOSS"),
}


def _tree(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


CLASSES: Final = {kind.code: kind for kind in _tree(errors.PenstockError)}


def http_status(code: str) -> int:
    """The HTTP status of an error."""
    return _status(code)[0]


def grpc_status(code: str) -> str:
    """The name of the gRPC status of an error."""
    return _status(code)[1]


def _status(code: str) -> tuple[int, str]:
    kind: type[PenstockError] = CLASSES.get(code, Internal)
    while kind.code not in STATUS:
        kind = kind.__mro__[1]
    return STATUS[kind.code]


def to_reply(error: PenstockError) -> ErrorReply:
    """An exception as it travels."""
    wait = error.retry_after_seconds if isinstance(error, RateLimited | PushPaused | Unavailable) else 0.0
    address = error.address if isinstance(error, Moved) else ""
    return ErrorReply(error.code, error.message, error.hint, wait, address)


def to_error(reply: ErrorReply) -> PenstockError:
    """The exception that a reply stands for; a code that is not known here is an error of the server's."""
    waits = {RateLimited.code: RateLimited, Unavailable.code: Unavailable}.get(reply.code)
    if waits is not None:
        return waits(reply.message, retry_after_seconds=reply.retry_after_seconds, hint=reply.hint)
    if reply.code == Moved.code:
        return Moved(reply.message, address=reply.address, hint=reply.hint)
    kind = CLASSES.get(reply.code)
    if kind is None:
        return Internal(f"{reply.code}: {reply.message}", hint=reply.hint)
    return kind(reply.message, hint=reply.hint)
