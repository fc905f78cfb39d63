"""`penstock trace`: what happened to a message, by its id, its key or its trace id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penstock import limits
from penstock.cli import human, output
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson
from penstock.cli.target import Broker
from penstock.errors import QueueNotFound
from penstock.model import MessageId
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.replies import MessageDetails, MessageEvent, MessageSearch

ERROR_CHARACTERS = 200
HEADINGS = ("at", "after", "group", "what", "attempt", "consumer", "error")


def trace(
    broker: Broker,
    message: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A message id, queue/partition/offset; with --key or --trace, a queue."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The newest messages with this key.")] = None,
    trace_id: Annotated[str | None, typer.Option("--trace", help="The newest messages with this trace id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many messages per queue.")] = 20,
    look_back: Annotated[
        int, typer.Option("--look-back", help="How many messages per queue to search, newest first.")
    ] = limits.look_back_default,
    as_json: AsJson = False,
) -> None:
    """Show the history of a message: pushed, leased, retried, settled, redriven, by whom and why.

    Find it by id, or by key or trace id in one queue or all queues.
    """
    if key is None and trace_id is None:
        if message is None:
            raise CommandError("no message is given", hint="give its id, or --key or --trace with a queue")
        _one(broker, MessageId.parse(message), as_json=as_json)
        return
    with broker.opened() as ps:
        found = {
            name: search
            for name in ([message] if message else ps.queues())
            if (search := _search(ps, name, key, trace_id, limit, look_back, is_named=message is not None)) is not None
        }
    if not any(search.timelines for search in found.values()):
        searched = ", ".join(f"{name} back to {_reach(search)}" for name, search in found.items()) or "no queues"
        raise nothing_there("no message was found", f"searched: {searched}; --look-back goes further")
    if as_json:
        output.write_json([{"queue": name, **_search_json(search)} for name, search in found.items()])
        return
    for name, search in found.items():
        _write_search(name, search)


def _search(
    ps: Penstock, queue: str, key: str | None, trace_id: str | None, limit: int, look_back: int, *, is_named: bool
) -> MessageSearch | None:
    try:
        return ps.queue(queue).find(key=key, trace=trace_id, limit=limit, look_back=look_back)
    except QueueNotFound:
        if is_named:
            raise
        return None  # deleted meanwhile


def _one(broker: Broker, id: MessageId, *, as_json: bool) -> None:
    with broker.opened() as ps:
        queue = ps.queue(id.queue)
        events = queue.events(id)
        details = queue.message(id) if any(event.what == "pushed" for event in events) else None
    if not events:
        raise nothing_there(
            f"the history of {id} is no longer kept", "raise the retention of its queue to keep history longer"
        )
    if as_json:
        states = [] if details is None else details.groups
        output.write_json({"id": str(id), "groups": states, "events": [_json(event) for event in events]})
        return
    output.write(f"[bold]{escape(str(id))}[/]{_about(details)}")
    output.write(output.table(HEADINGS, _rows(events), text_columns=7, has_excerpt=True))
    for state in [] if details is None else details.groups:
        output.write(f"[dim]{escape(state.group)}:[/] {escape(state.state)}, {escape(state.text)}")


def _about(details: MessageDetails | None) -> str:
    if details is None:
        return " [dim]no longer kept[/]"
    message = details.message
    size = f"{len(message.payload):,} bytes" if isinstance(message.payload, bytes) else ""
    parts = [f"key {message.key}" if message.key else "", f"trace {message.trace}" if message.trace else "", size]
    return f" [dim]{escape(', '.join(filter(None, parts)))}[/]"


def _rows(events: list[MessageEvent]) -> list[tuple[Any, ...]]:
    first = events[0].at
    return [
        (
            human.moment(event.at),
            human.duration((event.at - first).total_seconds()) if event.at > first else human.EMPTY,
            event.group or human.EMPTY,
            event.what,
            str(event.attempt) if event.attempt else human.EMPTY,
            event.consumer or human.EMPTY,
            _note(event),
        )
        for event in events
    ]


def _note(event: MessageEvent) -> str:
    """The error, or where it went."""
    error = human.excerpt(event.error.encode(errors="replace"), ERROR_CHARACTERS)
    due = f"next attempt at {human.moment(event.due_at)}" if event.due_at else ""
    letter = f"dead letter {event.letter}" if event.letter else ""
    return "; ".join(filter(None, (error, due, letter))) or human.EMPTY


def _write_search(queue: str, search: MessageSearch) -> None:
    for timeline in search.timelines:
        parts = [f"key {timeline.key}" if timeline.key else "", f"trace {timeline.trace}" if timeline.trace else ""]
        output.write(f"[bold]{escape(str(timeline.id))}[/] [dim]{escape(', '.join(filter(None, parts)))}[/]")
        output.write(output.table(HEADINGS, _rows(timeline.events), text_columns=7, has_excerpt=True))
    looked = f"{plural(search.examined, 'message')} of {queue} searched, back to {_reach(search)}"
    output.write(f"[dim]{escape(looked)}[/]")


def _reach(search: MessageSearch) -> str:
    return "the oldest that is kept" if search.is_complete else human.moment(search.looked_back_to)


def _search_json(search: MessageSearch) -> dict[str, Any]:
    timelines = [
        msgspec.structs.asdict(timeline) | {"id": str(timeline.id), "events": list(map(_json, timeline.events))}
        for timeline in search.timelines
    ]
    return msgspec.structs.asdict(search) | {"timelines": timelines}


def _json(event: MessageEvent) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    return fields | {"letter": None if event.letter is None else str(event.letter)}
