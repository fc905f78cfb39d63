"""Lines of input as batches of messages. A pipe that pauses is not waited for: what has come so far is pushed."""

from __future__ import annotations

import select
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Literal

import msgspec

from penstock.cli.exits import CommandError
from penstock.model import CONTENT_TYPE_NAMES, ContentType, Message, suggestion

Kind = Literal["text", "json", "bytes"]

READ_BYTES: Final = 64 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024

Lines = tuple[list[bytes], int]  # some lines, and the bytes read so far
Messages = tuple[list[Message], int]

# What a message that was printed says beyond what can be pushed.
PRINTED: Final = {"id", "pushed_at", "available_at", "expires_at", "group", "attempt", "receipt", "lease_id"}
CONTENT_TYPES: Final = {name: kind for kind, name in CONTENT_TYPE_NAMES.items()}
FIELDS: Final = (
    "payload", "payload_base64", "content_type", "key", "priority", "delay_ms", "deliver_at", "ttl_ms", "headers",
    "dedup_key", "partition", "max_attempts", "trace",
)  # fmt: skip


def message_of(content: bytes, kind: Kind | None, options: dict[str, Any]) -> Message:
    """A message of this content, which must be what it is said to be."""
    if kind == "json":
        try:
            msgspec.json.format(content)
        except msgspec.DecodeError as error:
            raise CommandError(f"--type json: the payload is no JSON: {error}", hint="quote it for the shell") from None
    return Message(payload=content, content_type=content_type_of(content, kind), **options)


def content_type_of(content: bytes, kind: Kind | None) -> ContentType:
    """As said, or as it looks."""
    if kind is not None:
        return {"text": ContentType.TEXT, "json": ContentType.JSON, "bytes": ContentType.BYTES}[kind]
    try:
        content.decode()
    except UnicodeDecodeError:
        return ContentType.BYTES
    return ContentType.TEXT


def batches(source: BinaryIO, count_max: int) -> Iterator[Lines]:
    """Lines without their ends, at most `count_max` at a time, sooner when no more input is there."""
    read1 = getattr(source, "read1", source.read)
    lines: list[bytes] = []
    rest, bytes_read, bytes_held = b"", 0, 0
    while chunk := read1(READ_BYTES):
        bytes_read += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.append(line.removesuffix(b"\r"))
            bytes_held += len(line)
            if len(lines) >= count_max or bytes_held >= BATCH_BYTES:
                yield lines, bytes_read
                lines, bytes_held = [], 0
        if lines and not _has_more(source):
            yield lines, bytes_read
            lines, bytes_held = [], 0
    if rest:
        lines.append(rest)
    if lines:
        yield lines, bytes_read


def _has_more(source: BinaryIO) -> bool:
    """Whether a read would return at once."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # not something that can be waited for
        return True


def messages_from_lines(chunks: Iterator[Lines], kind: Kind | None, options: dict[str, Any]) -> Iterator[Messages]:
    """A message of each line."""
    for lines, bytes_read in chunks:
        yield [message_of(line, kind, options) for line in lines], bytes_read


def messages_from_json(chunks: Iterator[Lines], options: dict[str, Any]) -> Iterator[Messages]:
    """The message that each line describes; empty lines are passed over."""
    number = 0
    for lines, bytes_read in chunks:
        messages = []
        for line in lines:
            number += 1
            if line.strip():
                messages.append(_message(line, number, options))
        if messages:
            yield messages, bytes_read


def _message(line: bytes, number: int, options: dict[str, Any]) -> Message:
    try:
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise CommandError(f"line {number}: {error}", hint='a line reads {"payload": …, "key": …}') from None
    for name in found:
        if name not in FIELDS and name not in PRINTED:
            raise CommandError(f"line {number}: {name!r} is not a field of a message", hint=suggestion(name, FIELDS))
    try:
        fields: dict[str, Any] = {name: msgspec.json.decode(found[name]) for name in FIELDS[2:] if name in found}
        content, kind = _payload(found, fields.pop("content_type", None))
    except (KeyError, ValueError, TypeError) as error:
        raise CommandError(f"line {number}: {error}", hint="a message has a payload, or a payload_base64") from None
    for name in ("delay", "ttl"):
        if f"{name}_ms" in fields:
            fields[name] = _seconds(fields.pop(f"{name}_ms"), name, number)
    present = {name: value for name, value in fields.items() if value is not None}
    return Message(payload=content, content_type=kind, **{**options, **present})


def _payload(found: dict[str, msgspec.Raw], name: str | None) -> tuple[bytes, ContentType]:
    """The bytes of a payload, and what they are."""
    if name is not None and name not in CONTENT_TYPES:
        raise ValueError(f"content_type: {name!r} is not one of {', '.join(CONTENT_TYPES)}")
    if ("payload" in found) == ("payload_base64" in found):
        raise ValueError("there is no payload, or there are two")
    if "payload_base64" in found:
        text = msgspec.json.decode(found["payload_base64"], type=str)
        return b64decode(text, validate=True), CONTENT_TYPES.get(name or "", ContentType.BYTES)
    raw = bytes(found["payload"])
    if name == CONTENT_TYPE_NAMES[ContentType.TEXT]:
        return msgspec.json.decode(raw, type=str).encode(), ContentType.TEXT
    return raw, ContentType.TASK if name == CONTENT_TYPE_NAMES[ContentType.TASK] else ContentType.JSON


def _seconds(value: Any, name: str, number: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"line {number}: {name}_ms: {value!r} is not a number", hint="milliseconds")
    return value / 1000
