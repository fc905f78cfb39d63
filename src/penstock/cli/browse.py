"""`penstock peek`, `search`, `delayed`, `cancel` and `tail`: messages, looked at without a lease.

`tail` leases nothing and makes no group: each partition is read by offset, so any number may watch, with the right to
read and no more. One request asks where every partition ends, and only those that grew are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from penstock import limits
from penstock.cli import human, output, shapes
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import (
    AsJson,
    Group,
    Limit,
    Partition,
    PayloadOnly,
    QueueName,
    instant_option,
    pairs,
    seconds_option,
)
from penstock.cli.target import Broker
from penstock.model import DEFAULT_GROUP, Message, MessageId, PartitionLag

if TYPE_CHECKING:
    from penstock import Queue


MessageIdText = Annotated[str, typer.Argument(metavar="ID", help="queue/partition/offset.")]
EXCERPT_CHARACTERS = 200


def peek(
    broker: Broker,
    queue: QueueName,
    limit: Limit = 10,
    payload_only: PayloadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Show the next messages of the default group, due or not, without leasing them."""
    with broker.opened() as ps:
        messages = ps.queue(queue).peek(limit)
    if not messages:
        output.write_nothing(f"no messages left for the default group of {queue!r}")
        return
    write_messages(messages, payload_only=payload_only, as_json=as_json)


def latest(
    broker: Broker,
    queue: QueueName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the message.")],
    payload_only: PayloadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Show the latest message of a key, in a queue with --compaction latest."""
    with broker.opened() as ps:
        message = ps.queue(queue).latest(key)
    if message is None:
        raise nothing_there(f"queue {queue!r} has no message with the key {key!r}", "a tombstone may have deleted it")
    write_messages([message], payload_only=payload_only, as_json=as_json)


def delayed(
    broker: Broker,
    queue: QueueName,
    limit: Limit = 100,
    retries: Annotated[
        bool, typer.Option("--retries", help="Include messages waiting for their next attempt.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List messages that are not due yet, soonest first."""
    with broker.opened() as ps:
        messages = ps.queue(queue).delayed(limit, include="retries" if retries else "")
    if as_json:
        for message in messages:
            output.write_json_line(shapes.message(message))
        return
    if not messages:
        output.write_nothing(f"nothing is delayed in {queue!r}")
        return
    if retries:
        output.write(output.table(RETRY_HEADINGS, [_retry_row(message) for message in messages], text_columns=6))
        return
    rows = [
        (message.id, human.until(message.available_at), human.moment(message.available_at), _excerpt(message))
        for message in messages
    ]
    output.write(output.table(("id", "due", "at", "payload"), rows, text_columns=4, has_excerpt=True))


RETRY_HEADINGS = ("id", "due", "group", "attempt", "last", "error")


def _retry_row(message: Message) -> tuple[Any, ...]:
    due, retry = human.until(message.available_at), message.retry
    if retry is None:
        return message.id, due, human.EMPTY, human.EMPTY, human.EMPTY, human.EMPTY
    return message.id, due, retry.group, str(retry.attempt), retry.reason, _error(retry.error)


def search(
    broker: Broker,
    queue: QueueName,
    text: Annotated[str | None, typer.Argument(help="The payload contains this text.")] = None,
    since: Annotated[datetime | None, instant_option("--from", about="Pushed at or after this time.")] = None,
    until: Annotated[datetime | None, instant_option("--to", about="Pushed before this time.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Messages with this key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Messages with this header; repeatable.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Messages with this trace id.")] = None,
    state: Annotated[str | None, typer.Option(help="ready, delayed, leased, waiting, settled or dead.")] = None,
    group: Group = DEFAULT_GROUP,
    limit: Limit = 20,
    look_back: Annotated[
        int, typer.Option("--look-back", help="How many messages to look at, from the newest.")
    ] = limits.look_back_default,
    payload_only: PayloadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Search in the messages of a queue, settled ones too, the newest first."""
    headers = pairs(header, "--header", "tenant=acme") if header else None
    filters = {"since": since, "until": until, "key": key, "headers": headers, "text": text, "trace": trace}
    messages: list[Message] = []
    cursor, left = None, look_back
    with broker.opened() as ps:
        while True:
            wanted = {"limit": limit - len(messages), "look_back": left, "cursor": cursor}
            page = ps.queue(queue).search(**filters, state=state, group=group, **wanted)  # type: ignore[arg-type]
            messages += page.messages
            cursor, left = page.cursor, left - page.examined
            if cursor is None or left <= 0 or len(messages) >= limit:
                break
    if messages:
        write_messages(messages, payload_only=payload_only, as_json=as_json)
    else:
        output.write_nothing(f"no message of {queue!r} matches")
    if cursor is not None and not as_json and not payload_only:
        examined = f"{look_back - left:,} messages looked at, back to {human.moment(page.looked_back_to)}"
        output.write(f"[dim]{examined}; --look-back and --limit go further[/]")


def cancel(
    broker: Broker,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="queue/partition/offset.")],
    as_json: AsJson = False,
) -> None:
    """Cancel messages that nobody has leased yet."""
    chosen = [MessageId.parse(text) for text in ids]
    with broker.opened() as ps:
        for id in chosen:
            ps.queue(id.queue).cancel(id)
            if as_json:
                output.write_json_line({"id": str(id), "status": "cancelled"})
            else:
                output.done(f"{id} cancelled", None, as_json=False)


def _error(text: str) -> str:
    return human.excerpt(text.encode(errors="replace"), EXCERPT_CHARACTERS) or human.EMPTY


def write_messages(messages: list[Message], *, payload_only: bool, as_json: bool) -> None:
    """Messages that were read: a table, a line of JSON each, or payloads alone."""
    for message in messages if as_json or payload_only else []:
        if as_json:
            output.write_json_line(shapes.message(message))
        else:
            output.write_bytes(shapes.content(message))
    if as_json or payload_only:
        return
    has_keys = any(message.key is not None for message in messages)
    headings = ("id", "age", *(("key",) if has_keys else ()), "payload")
    rows = [
        (
            message.id,
            human.age(message.pushed_at),
            *((message.key or human.EMPTY,) if has_keys else ()),
            _excerpt(message),
        )
        for message in messages
    ]
    output.write(output.table(headings, rows, text_columns=len(headings), has_excerpt=True))


def _excerpt(message: Message) -> str:
    return human.excerpt(shapes.content(message), EXCERPT_CHARACTERS)


READ_MESSAGES = 1000


def tail(
    broker: Broker,
    queue: QueueName,
    start: Annotated[
        Any,
        typer.Option(
            "--from",
            parser=human.position,
            metavar="POSITION",
            help="latest, earliest, an offset, or a time; -5m is five minutes ago.",
        ),
    ] = "latest",
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, help="Start this many messages before the end of each partition.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more at the end, or stop there.")
    ] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many messages.")] = None,
    every: Annotated[float, seconds_option("--every", about="How often to check for new messages.")] = 0.25,
    partition: Partition = None,
    payload_only: PayloadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Print messages as they are pushed, delayed ones too. Nothing is leased or settled.

    With several partitions, messages are in order within each partition. Stop with Ctrl-C.
    """
    if every < 0.01:
        raise CommandError(f"--every: {human.duration(every)} is too often", hint="the minimum is 10ms")
    if follow and broker.is_directory:
        # While this process has the directory, nobody else can push.
        follow = False
    with broker.opened() as ps:
        paper = output.console()
        followed = Follower(ps.queue(queue), partition)
        followed.begin(start, last)
        left = limit
        while True:
            for message in followed.read():
                write_message(message, paper, payload_only=payload_only, as_json=as_json)
                left = None if left is None else left - 1
                if left == 0:
                    return
            if not follow:
                return
            time.sleep(every)


class Follower:
    """Where a reader stands in each partition of a queue."""

    def __init__(self, queue: Queue, partition: str | None) -> None:
        self._queue = queue
        self._partition = partition
        self._next: dict[str, int] = {}

    def begin(self, start: str | int | datetime, last: int) -> None:
        """Stand at a position, or `last` messages before it if it is the end."""
        lags = self._lags()
        if self._partition is not None and self._partition not in {lag.partition for lag in lags}:
            # The broker knows best what to say about it.
            self._queue.read(self._partition, limit=1)
        for lag in lags:
            self._next[lag.partition] = self._offset(lag, start, last)

    def read(self) -> Iterator[Message]:
        """What has come since, oldest first within each partition."""
        for lag in self._lags():
            # A partition that was not there at the beginning is new as a whole.
            position = self._next.get(lag.partition, lag.start_offset)
            while position < lag.end_offset:
                messages = self._queue.read(lag.partition, position, limit=READ_MESSAGES)
                for message in messages:
                    assert message.id is not None
                    position = self._next[lag.partition] = message.id.offset + 1
                    yield message
                if len(messages) < READ_MESSAGES:
                    # What is missing at the end was given up by a repair.
                    position = max(position, lag.end_offset)
            self._next[lag.partition] = position

    def _lags(self) -> list[PartitionLag]:
        rows = self._queue.groups()[DEFAULT_GROUP]
        return [row for row in rows if self._partition in (None, row.partition)]

    def _offset(self, lag: PartitionLag, start: str | int | datetime, last: int) -> int:
        if start == "earliest":
            return lag.start_offset
        if start == "latest":
            return max(lag.start_offset, lag.end_offset - last)
        if isinstance(start, int):
            return max(lag.start_offset, start)
        messages = self._queue.read(lag.partition, timestamp=start, limit=1)
        return messages[0].id.offset if messages and messages[0].id is not None else lag.end_offset


def write_message(message: Message, paper: Console, *, payload_only: bool, as_json: bool) -> None:
    """One line."""
    if as_json:
        output.write_json_line(shapes.message(message))
    elif payload_only:
        output.write_bytes(shapes.content(message))
    else:
        assert message.pushed_at is not None
        at = message.pushed_at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
        text = human.excerpt(shapes.content(message), len(message.payload) * 4)
        if not paper.is_terminal:  # layout takes its time, and a pipe may want millions of lines
            output.write_plain(f"{at} {message.id} {'' if message.key is None else f'{message.key} '}{text}")
            return
        key = "" if message.key is None else f" [cyan]{escape(message.key)}[/]"
        output.write(f"[dim]{at}[/] [bold]{escape(str(message.id))}[/]{key} {escape(text)}", paper)
