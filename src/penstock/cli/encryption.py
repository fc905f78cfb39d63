"""`penstock encryption`: master keys, and the data keys of encrypted queues."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import human, output
from penstock.cli.options import AsJson, QueueName, Yes, command, instant_option
from penstock.cli.target import Broker

if TYPE_CHECKING:
    from penstock.replies import DataKeyView

app = typer.Typer(help="Encrypted queues: init, status, rotate, rewrap, erase.", no_args_is_help=True)


@command(app)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file to create; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Create a master key: 32 random bytes in a file that only you can read."""
    from penstock.access.encryption import new_key_file

    new_key_file(file)
    text = f"{file} is a new master key: set master_key to it, and keep a copy elsewhere"
    output.done(text, {"file": str(file), "status": "made"}, as_json=as_json)


@command(app)
def status(broker: Broker, as_json: AsJson = False) -> None:
    """List the data keys of encrypted queues: in use, retired or erased, and their age."""
    from penstock import operations as ops

    with broker.opened() as ps:
        keys = ps.session.execute(ops.ListDataKeys())
    nothing = ("no data keys", "the first message of an encrypted queue creates one")
    output.write_list(keys, ("queue", "key", "state", "age"), _row, as_json=as_json, nothing=nothing)


def _row(key: DataKeyView) -> tuple[str, ...]:
    return key.queue, key.id, key.state, human.age(key.created_at)


@command(app)
def rotate(broker: Broker, queue: QueueName, as_json: AsJson = False) -> None:
    """Encrypt new messages of a queue with a new data key."""
    from penstock import operations as ops

    with broker.opened() as ps:
        key = ps.session.execute(ops.RotateDataKey(queue))
    output.done(f"queue {queue} has a new data key {key}", {"queue": queue, "key": key}, as_json=as_json)


@command(app)
def rewrap(
    broker: Broker,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new key file, on the broker's machine.")],
    as_json: AsJson = False,
) -> None:
    """Wrap all data keys with another master key. No message is touched."""
    from penstock import operations as ops

    with broker.opened() as ps:
        count = ps.session.execute(ops.RewrapDataKeys(str(file)))
    text = f"{count} data keys are wrapped with {file}: set master_key to it before the broker starts again"
    output.done(text, {"file": str(file), "rewrapped": count}, as_json=as_json)


@command(app)
def erase(
    broker: Broker,
    queue: QueueName,
    before: Annotated[
        datetime | None, instant_option("--before", about="Only keys that were replaced before this time.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase the data keys of a queue: its messages so far become unreadable, in every copy and backup."""
    from penstock import operations as ops

    output.confirm(f"Make the encrypted messages of {queue} unreadable for good?", yes=yes)
    with broker.opened() as ps:
        count = ps.session.execute(ops.EraseDataKeys(queue, queue, before))
    output.done(f"{count} data keys of {queue} are erased", {"queue": queue, "erased": count}, as_json=as_json)
