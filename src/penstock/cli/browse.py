"""`penstock peek`, `delayed`, `cancel`, `why`: single messages, looked at and taken back."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import human, output, shapes
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, ContextOption, Limit, PayloadOnly, QueueName, Url
from penstock.cli.target import opened
from penstock.model import Message, MessageId

MessageIdText = Annotated[str, typer.Argument(metavar="ID", help="queue/partition/offset.")]
EXCERPT_CHARACTERS = 200


def peek(
    queue: QueueName,
    limit: Limit = 10,
    payload_only: PayloadOnly = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """The next messages of the default group, without effect, whether due or not."""
    with opened(url, context) as ps:
        found = ps.queue(queue).peek(limit)
    if not found:
        raise nothing_there(f"nothing is before the default group of {queue!r}")
    write_messages(found, payload_only=payload_only, as_json=as_json)


def delayed(
    queue: QueueName, limit: Limit = 100, url: Url = None, context: ContextOption = None, as_json: AsJson = False
) -> None:
    """Messages that are not due yet, soonest first."""
    with opened(url, context) as ps:
        found = ps.queue(queue).delayed(limit)
    if not found:
        raise nothing_there(f"nothing is delayed in {queue!r}")
    if as_json:
        for message in found:
            output.write_json_line(shapes.message(message))
        return
    rows = [
        (message.id, human.until(message.available_at), human.moment(message.available_at), _excerpt(message))
        for message in found
    ]
    output.write(output.table(("id", "due", "at", "payload"), rows, text_columns=4, has_excerpt=True))


def cancel(
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="queue/partition/offset.")],
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Take messages back before anyone has them."""
    chosen = [MessageId.parse(text) for text in ids]
    with opened(url, context) as ps:
        for id in chosen:
            ps.queue(id.queue).cancel(id)
            if as_json:
                output.write_json_line({"id": str(id), "status": "cancelled"})
            else:
                output.done(f"{id} cancelled", None, as_json=False)


def why(id: MessageIdText, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Why is this message not delivered? One answer for each group."""
    chosen = MessageId.parse(id)
    with opened(url, context) as ps:
        reasons = ps.queue(chosen.queue).why(chosen)
    if as_json:
        output.write_json([{"group": each.group, "code": each.code, "text": each.text} for each in reasons])
    else:
        output.write(output.table(("group", "code", "why"), [tuple(each) for each in reasons], text_columns=3))


def write_messages(found: list[Message], *, payload_only: bool, as_json: bool) -> None:
    """Messages that were read: a table, a line of JSON each, or payloads alone."""
    for message in found if as_json or payload_only else []:
        if as_json:
            output.write_json_line(shapes.message(message))
        else:
            output.write_bytes(shapes.content(message))
    if as_json or payload_only:
        return
    has_keys = any(message.key is not None for message in found)
    headings = ("id", "age", *(("key",) if has_keys else ()), "payload")
    rows = [
        (
            message.id,
            human.age(message.pushed_at),
            *((message.key or human.EMPTY,) if has_keys else ()),
            _excerpt(message),
        )
        for message in found
    ]
    output.write(output.table(headings, rows, text_columns=len(headings), has_excerpt=True))


def _excerpt(message: Message) -> str:
    return human.excerpt(shapes.content(message), EXCERPT_CHARACTERS)
