"""Signed tasks: a worker runs only what somebody with the key has submitted.

The signature is an HMAC-SHA256 over id, type, queue, arguments with their bytes, and the instant until which it holds.
It travels as a header of the message: `penstock-signature: <until, µs, or 0>.<64 hex digits>`. The first key signs, all
of them are accepted, so that keys can be replaced one worker at a time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import InvalidField, reason
from penstock.model import to_micros
from penstock.model_tasks import Envelope, TaskSubmission

HEADER: Final = "penstock-signature"
KEY_BYTES_MIN: Final = 16

Key = bytes | str | Path


class Signer:
    """The keys of an app."""

    def __init__(self, keys: Key | Sequence[Key]) -> None:
        if not isinstance(keys, bytes | str | Path | Sequence):
            raise InvalidField("sign: it must be a key or a list of keys", hint="a key is bytes, or the path of a file")
        chosen = [keys] if isinstance(keys, bytes | str | Path) else list(keys)
        if not chosen:
            raise InvalidField("sign: the list of keys is empty")
        self._keys = [_loaded(key) for key in chosen]

    def __repr__(self) -> str:
        return f"<Signer with {len(self._keys)} keys>"

    def signed(self, task: TaskSubmission, now: int) -> TaskSubmission:
        """The task with its signature, which ends with its time to live. `now` is wall time in µs."""
        until = _until(task, now)
        signature = f"{until}.{_digest(self._keys[0], _signed(task, task.queue), until)}"
        return msgspec.structs.replace(task, headers={**(task.headers or {}), HEADER: signature})

    def problem(self, envelope: Envelope, queue: str, headers: Mapping[str, str] | None, now: int) -> str:
        """Why a task must not be run; empty when its signature holds."""
        text = (headers or {}).get(HEADER)
        if text is None:
            return "the task is not signed"
        until, _, shown = text.partition(".")
        if not (until.isascii() and until.isdigit() and shown.isascii()):
            return "the signature of the task is malformed"
        fields = _signed(envelope, queue)
        if not any(hmac.compare_digest(_digest(key, fields, int(until)), shown) for key in self._keys):
            return "the signature of the task does not match it"
        if int(until) and now >= int(until):
            return "the signature of the task has expired"
        return ""


def _until(task: TaskSubmission, now: int) -> int:
    if task.ttl_seconds is None:
        return 0
    due = now + round(task.delay_seconds * 1_000_000)
    if task.deliver_at is not None:
        due = max(due, to_micros(task.deliver_at, "deliver_at"))
    return due + round(task.ttl_seconds * 1_000_000)


def _signed(task: TaskSubmission | Envelope, queue: str) -> list[bytes]:
    """What is signed of a task."""
    fields = [task.task_id.encode(), task.task_type.encode(), queue.encode(), bytes(task.args), bytes(task.kwargs)]
    return fields if task.payload is None else [*fields, task.payload]


def _digest(key: bytes, fields: list[bytes], until: int) -> str:
    """Each field with its length before it, so that none can end in another."""
    data = b"".join(len(part).to_bytes(8, "little") + part for part in (*fields, str(until).encode()))
    return hmac.new(key, b"penstock task\x01" + data, hashlib.sha256).hexdigest()


def _loaded(key: Key) -> bytes:
    """The bytes of a key; a text or a path names the file that holds it."""
    if not isinstance(key, bytes | str | Path):
        raise InvalidField("sign: a key must be bytes, or the path of a file")
    if not isinstance(key, bytes):
        path = Path(key)
        try:
            key = path.read_bytes().strip()
        except (OSError, ValueError) as error:  # ValueError: no name of a file
            raise InvalidField(f"sign: {str(path)!r} cannot be read: {reason(error)}") from None
    if len(key) < KEY_BYTES_MIN:
        raise InvalidField(f"sign: a key needs at least {KEY_BYTES_MIN} bytes, not {len(key)}")
    return key
