"""`penstock push`: one message from the command line, a file or standard input; or one per line, in batches.

A pipe that pauses is not waited for: what has been read so far is pushed.
"""

from __future__ import annotations

import os
import select
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import msgspec
import typer

from penstock.cli import output
from penstock.cli.exits import CommandError
from penstock.cli.options import (
    AsJson,
    Flags,
    Partition,
    QueueName,
    instant_option,
    pairs,
    priority,
    seconds_option,
)
from penstock.cli.target import Broker
from penstock.model import CONTENT_TYPE_NAMES, ContentType, Message
from penstock.refusals import suggestion
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock


Kind = Literal["text", "json", "bytes"]

READ_BYTES: Final = 64 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024

Lines = tuple[list[bytes], int]  # some lines, and the bytes read so far
Messages = tuple[list[Message], int, list[int]]  # messages, the bytes read so far, and the lines of the messages
Bad = list[tuple[int, str]]  # lines that could not be pushed, and why

# What a message that was printed says beyond what can be pushed.
PRINTED: Final = {"id", "pushed_at", "available_at", "expires_at", "group", "attempt", "receipt", "lease_id"}
CONTENT_TYPES: Final = {name: kind for kind, name in CONTENT_TYPE_NAMES.items()}
FIELDS: Final = (
    "payload", "payload_base64", "content_type", "key", "priority", "delay_ms", "deliver_at", "ttl_ms", "headers",
    "dedup_key", "partition", "max_attempts", "trace",
)  # fmt: skip


def message_of(content: bytes, kind: Kind | None, options: dict[str, Any]) -> Message:
    """A message of this content, which must be what it is said to be."""
    if kind == "json" and not is_json(content):
        raise CommandError("--type json: the payload is not JSON", hint="quote it for the shell, or use --text")
    content_type = content_type_of(content, kind)
    payload = content.strip() if content_type is ContentType.JSON else content  # the end of a line is not part of it
    return Message(payload=payload, content_type=content_type, **options)


def content_type_of(content: bytes, kind: Kind | None) -> ContentType:
    """As `--type` says, or else what it is: JSON, text or bytes."""
    if kind is not None:
        return {"text": ContentType.TEXT, "json": ContentType.JSON, "bytes": ContentType.BYTES}[kind]
    try:
        content.decode()
    except UnicodeDecodeError:
        return ContentType.BYTES
    return ContentType.JSON if is_json(content) else ContentType.TEXT


def is_json(content: bytes) -> bool:
    """Whether these bytes are a JSON value."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


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
    first = 1
    for lines, bytes_read in chunks:
        numbers = list(range(first, first + len(lines)))
        yield [message_of(line, kind, options) for line in lines], bytes_read, numbers
        first += len(lines)


def messages_from_json(chunks: Iterator[Lines], options: dict[str, Any], bad: Bad | None = None) -> Iterator[Messages]:
    """The message that each line describes; empty lines are passed over, and wrong ones noted if `bad` is there."""
    number = 0
    for lines, bytes_read in chunks:
        messages, numbers = [], []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                messages.append(_message(line, number, options))
                numbers.append(number)
            except CommandError as error:
                if bad is None:
                    raise
                bad.append((number, str(error).removeprefix(f"line {number}: ")))
        if messages:
            yield messages, bytes_read, numbers


def _message(line: bytes, number: int, options: dict[str, Any]) -> Message:
    try:
        fields_sent = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise CommandError(f"line {number}: {error}", hint='a line reads {"payload": …, "key": …}') from None
    for name in fields_sent:
        if name not in FIELDS and name not in PRINTED:
            raise CommandError(f"line {number}: {name!r} is not a field of a message", hint=suggestion(name, FIELDS))
    try:
        fields: dict[str, Any] = {
            name: msgspec.json.decode(fields_sent[name]) for name in FIELDS[2:] if name in fields_sent
        }
        content, kind = _payload(fields_sent, fields.pop("content_type", None))
    except (KeyError, ValueError, TypeError) as error:
        raise CommandError(f"line {number}: {error}", hint="a message has either payload or payload_base64") from None
    for name in ("delay", "ttl"):
        if f"{name}_ms" in fields:
            fields[name] = _seconds(fields.pop(f"{name}_ms"), name, number)
    present = {name: value for name, value in fields.items() if value is not None}
    return Message(payload=content, content_type=kind, **{**options, **present})


def _payload(fields_sent: dict[str, msgspec.Raw], name: str | None) -> tuple[bytes, ContentType]:
    """The bytes of a payload, and what they are."""
    if name is not None and name not in CONTENT_TYPES:
        raise ValueError(f"content_type: {name!r} is not one of {', '.join(CONTENT_TYPES)}")
    has_bytes = "payload_base64" in fields_sent
    if not has_bytes and "payload" not in fields_sent:
        raise ValueError("no payload is given")
    if has_bytes and "payload" in fields_sent:
        raise ValueError("payload and payload_base64 exclude each other")
    if has_bytes:
        text = msgspec.json.decode(fields_sent["payload_base64"], type=str)
        return b64decode(text, validate=True), CONTENT_TYPES.get(name or "", ContentType.BYTES)
    raw = bytes(fields_sent["payload"])
    if name == CONTENT_TYPE_NAMES[ContentType.TEXT]:
        return msgspec.json.decode(raw, type=str).encode(), ContentType.TEXT
    return raw, ContentType.TASK if name == CONTENT_TYPE_NAMES[ContentType.TASK] else ContentType.JSON


def _seconds(value: Any, name: str, number: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"line {number}: {name}_ms: {value!r} is not a number", hint="milliseconds")
    return value / 1000


LINES = "Many messages"


@dataclass(frozen=True)
class MessageFlags(Flags):
    """The fields of a message beside its payload."""

    key: Annotated[
        str | None, typer.Option("--key", "-k", help="The key: messages with the same key share a partition.")
    ] = None
    priority: Annotated[str, typer.Option(help="0 to 255, or background, low, normal, high, critical.")] = "normal"
    delay: Annotated[float, seconds_option("--delay", about="Deliver it after this time.")] = 0.0
    deliver_at: Annotated[datetime | None, instant_option("--deliver-at", about="Deliver it at this time.")] = None
    ttl: Annotated[float | None, seconds_option("--ttl", about="Drop it if it is not leased within this time.")] = None
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable.")
    ] = None
    dedup_key: Annotated[str | None, typer.Option(help="A second push with this dedup key is not stored.")] = None
    partition: Partition = None
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Attempts before it becomes a dead letter.")] = None
    trace: Annotated[str | None, typer.Option(help="A W3C traceparent to store with it.")] = None

    def options(self) -> dict[str, Any]:
        """The arguments of `Message`."""
        options = asdict(self)
        options["headers"] = pairs(options.pop("header") or (), "--header", "tenant=acme") or None
        options["priority"] = priority(self.priority)
        return options


def push(
    broker: Broker,
    queue: QueueName,
    *,
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD]", help="The payload. [default: standard input]")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the payload, or the lines, from this file.")
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--type", help="The content type. [default: JSON if it is valid JSON, else text]"),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Store it as text even if it is valid JSON.")] = False,
    fields: MessageFlags,
    lines: Annotated[bool, typer.Option("--lines", help="Push each line as a message.", rich_help_panel=LINES)] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Push each line as a message in JSON.", rich_help_panel=LINES)
    ] = False,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Messages per request.", rich_help_panel=LINES)] = 1000,
    on_error: Annotated[
        Literal["fail", "skip"],
        typer.Option(
            help="fail stops at the first invalid line; skip pushes the others and lists the invalid ones.",
            rich_help_panel=LINES,
        ),
    ] = "fail",
    ids: Annotated[bool, typer.Option("--ids", help="Print the id of each message.", rich_help_panel=LINES)] = False,
    as_json: AsJson = False,
) -> None:
    """Push a message, or one per line. It is durable when the command returns.

    The payload is the argument, the content of --file, or standard input. It is stored as JSON if it is valid JSON.
    Options apply to every message; with --json-lines each line has its own:
    `{"payload": …, "key": …, "priority": …, "delay_ms": …, "headers": {…}}`.
    """
    options = fields.options()
    if text and kind not in (None, "text"):
        raise CommandError(f"--text and --type {kind} exclude each other", hint="use one of them")
    kind = "text" if text else kind
    check_source(payload, file, many=lines or json_lines, both=lines and json_lines)
    with broker.opened(create=True) as ps, _source(payload, file) as source:
        if not (lines or json_lines):
            content = source.read()
            if not content and payload is None and kind is None:
                where = "standard input" if file is None else str(file)
                hint = "to push an empty payload, use --text, or '' as the payload"
                raise CommandError(f"{where} is empty: no payload is given", hint=hint)
            _push_one(ps, queue, message_of(content, kind, options), as_json=as_json)
            return
        chunks = batches(source, batch)
        bad: Bad | None = [] if on_error == "skip" else None
        made = messages_from_json(chunks, options, bad) if json_lines else messages_from_lines(chunks, kind, options)
        _push_many(ps, queue, made, _bytes_in(file), bad, ids=ids, as_json=as_json)


@contextmanager
def _source(payload: str | None, file: Path | None) -> Iterator[BinaryIO]:
    """Where the payload, or the lines, come from."""
    if payload is not None:
        # Words of a command line that are no UTF-8 arrive as surrogates; they go on as the bytes they were.
        yield BytesIO(payload.encode(errors="surrogateescape"))
    elif file is None:
        yield sys.stdin.buffer
    else:
        with file.open("rb") as opened_file:
            yield opened_file


def check_source(payload: str | None, file: Path | None, *, many: bool, both: bool) -> None:
    """The payload comes from one place, and that place has one."""
    if both:
        raise CommandError("--lines and --json-lines exclude each other", hint="use one of them")
    if payload is not None and (file is not None or many):
        raise CommandError("the payload is given twice", hint="give it as an argument, by --file or on standard input")
    if payload is None and file is None and sys.stdin.isatty():
        raise CommandError("no payload is given", hint="give it as an argument, by --file or on standard input")


def _bytes_in(file: Path | None) -> int | None:
    """How much there is to read, if that can be known."""
    return os.path.getsize(file) if file is not None and file.is_file() else None


def _push_one(ps: Penstock, queue: str, message: Message, *, as_json: bool) -> None:
    result = ps.queue(queue).push_many([message])
    id, status = str(result.ids[0]), result.statuses[0]
    if as_json:
        output.write_json({"id": id, "status": status})
    else:
        output.write_plain(id if status == "queued" else f"{id} (duplicate: not stored)")


def _push_many(
    ps: Penstock,
    queue: str,
    chunks: Iterator[Messages],
    total: int | None,
    bad: Bad | None,
    *,
    ids: bool,
    as_json: bool,
) -> None:
    """Batch by batch, telling how far it is; an error says how much was done before."""
    pushed = duplicates = 0
    try:
        with output.progress(f"pushing to {queue}", is_shown=not ids) as on_progress:
            for messages, bytes_read, lines in chunks:
                result = ps.queue(queue).push_many(messages, on_error="fail" if bad is None else "skip")
                if bad is not None:
                    bad += [(lines[row], f"{error.code}: {error.message}") for row, error in result.failures.items()]
                pushed += len(result.ids) - len(result.duplicates)
                duplicates += len(result.duplicates)
                on_progress(bytes_read, total)
                if ids:
                    _write_ids(result, as_json=as_json)
    except Exception as error:
        if pushed or duplicates:
            done = f"; {plural(pushed + duplicates, 'message')} before it were pushed"
            error.args = (f"{error.args[0]}{done}", *error.args[1:])
            if hasattr(error, "message"):
                error.message += done
        raise
    if not ids:
        also = f", {plural(duplicates, 'duplicate')} skipped" if duplicates else ""
        value = {"queue": queue, "pushed": pushed, "duplicates": duplicates}
        if bad is not None:
            value["failed"] = [{"line": line, "error": why} for line, why in sorted(bad)]
        output.done(f"pushed {plural(pushed, 'message')} to {queue}{also}", value, as_json=as_json)
    if bad:
        _refuse(bad, is_listed=ids or not as_json)


def _refuse(bad: Bad, *, is_listed: bool) -> None:
    """Say which lines failed, and end with an error."""
    if is_listed:
        for line, why in sorted(bad):
            sys.stderr.write(f"line {line}: {why}\n")
    raise CommandError(f"{plural(len(bad), 'line')} could not be pushed", hint="fix these lines and push them again")


def _write_ids(result: Any, *, as_json: bool) -> None:
    for item in result.items:
        if item.error is not None:
            continue
        if as_json:
            output.write_json_line({"id": str(item.id), "status": item.status})
        else:
            output.write_plain(str(item.id))
