"""`penstock lease`, and `ack`, `nack`, `reject`, `release`, `extend` by receipt.

Nothing is settled before it is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.groups import POSITION_HELP
from penstock.cli.options import AsJson, Group, PayloadOnly, QueueNames, seconds_option
from penstock.cli.target import Broker
from penstock.model import DEFAULT_GROUP, Outcome, Receipt, to_datetime

if TYPE_CHECKING:
    from penstock import Delivery, Leased, Penstock
    from penstock.client._sync.delivery import LeasedQueues
    from penstock.client.session import Session


AFTER = "Then"


Order = Annotated[
    Literal["fair", "listed"],
    typer.Option(help="With several queues: fair takes turns, listed drains them in order."),
]


def _ending(name: str, about: str) -> Any:
    return typer.Option(name, help=about, rich_help_panel=AFTER)


def lease(
    broker: Broker,
    queues: QueueNames,
    max: Annotated[int, typer.Option("--max", "-n", min=1, max=100_000, help="At most this many.")] = 1,
    wait: Annotated[
        float, seconds_option("--wait", "-w", about="Wait this long for the first message, at most 60s.")
    ] = 0.0,
    group: Group = DEFAULT_GROUP,
    start: Annotated[
        Any,
        typer.Option(
            "--start",
            parser=human.position,
            metavar="POSITION",
            help=f"Create the group at this position: {POSITION_HELP}",
        ),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        seconds_option("--lease-seconds", about="How long the lease lasts. [default: the queue's setting]"),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="A name for this consumer.")] = None,
    order: Order = "fair",
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition; repeatable.")
    ] = None,
    payload_only: PayloadOnly = False,
    ack: Annotated[bool, _ending("--ack", "Acknowledge them once they are printed.")] = False,
    nack: Annotated[bool, _ending("--nack", "Report failure: retry later.")] = False,
    reject: Annotated[bool, _ending("--reject", "Give up: move them to the dead-letter queue.")] = False,
    release: Annotated[bool, _ending("--release", "Return them; the attempt does not count.")] = False,
    hold: Annotated[bool, _ending("--hold", "Keep them leased, to settle by receipt later. The default.")] = False,
    delay: Annotated[float | None, seconds_option("--delay", about="With --nack: retry after this time.")] = None,
    error: Annotated[str, typer.Option(help="With --nack or --reject: what went wrong.")] = "",
    as_json: AsJson = False,
) -> None:
    """Lease messages and print them; then ack, nack, reject, release or hold them.

    Held messages are delivered again when their lease ends. Settle them with their receipts: 'penstock ack', 'nack',
    'reject', 'release' or 'extend'.
    """
    chosen = [name for name, given in zip(ENDS, (ack, nack, reject, release, hold), strict=True) if given]
    if len(chosen) > 1:
        raise CommandError(f"--{chosen[0]} and --{chosen[1]} exclude each other", hint="use one of them")
    end = chosen[0] if chosen else "hold"
    if end == "hold" and broker.is_directory:
        hint = "a lease in a directory ends with this command: use --ack, --nack, --reject or --release"
        raise CommandError("a lease cannot be held without a broker", hint=hint)
    with broker.opened() as ps:
        how = {"max": max, "wait": wait, "lease_seconds": lease_seconds, "consumer": consumer, "start": start}
        leased = _leased(ps, queues, group, partition, order, how)
        paper = output.console()
        for delivery in leased:
            write_delivery(delivery, group, paper, is_held=end == "hold", payload_only=payload_only, as_json=as_json)
        finish(leased, end, delay, error)


def _leased(
    ps: Penstock, queues: list[str], group: str, partitions: list[str] | None, order: Any, how: dict[str, Any]
) -> Leased | LeasedQueues:
    leased: Leased | LeasedQueues
    if len(queues) == 1 and not queues[0].endswith("*"):
        leased = ps.queue(queues[0]).lease(group=group, partitions=partitions or None, **how)
    elif partitions:
        raise CommandError("--partition needs a single queue", hint="name one queue")
    else:
        leased = ps.lease(queues, group=group, order=order, **how)
    if not leased:
        names = ", ".join(map(repr, queues))
        raise nothing_there(
            f"nothing is ready in {names} for group {group!r}", f"'penstock stats {queues[0]}' shows why"
        )
    return leased


ENDS = ("ack", "nack", "reject", "release", "hold")


def finish(leased: Leased | LeasedQueues, end: str, delay: float | None, error: str) -> None:
    """Settle a lease as `end` says."""
    if end == "ack":
        leased.ack()
    elif end == "nack":
        leased.nack(delay, error)
    elif end == "reject":
        leased.reject(error)
    elif end == "release":
        leased.release()


def write_delivery(
    delivery: Delivery, group: str, paper: Console, *, is_held: bool, payload_only: bool, as_json: bool
) -> None:
    """One delivery: a line about it, its receipt if it is of use, and the payload."""
    if as_json:
        output.write_json_line(shapes.delivery(delivery, group))
        return
    if not payload_only:
        about = [f"attempt {delivery.attempt}", f"pushed {human.age(delivery.pushed_at)} ago"]
        about += [f"key {delivery.key}"] if delivery.key is not None else []
        about += [f"priority {delivery.priority}"] if delivery.priority != 128 else []
        about += [f"{name}={value}" for name, value in delivery.headers.items()]
        output.write(f"[bold]{escape(str(delivery.id))}[/] [dim]{escape(', '.join(about))}[/]", paper)
        if is_held:
            until = human.until(delivery.expires_at)
            output.write(f"[dim]receipt[/] {escape(delivery.receipt)} [dim](lease ends {until})[/]", paper)
    output.write_bytes(delivery.payload)


Receipts = Annotated[list[str], typer.Argument(metavar="RECEIPT…", help="Receipts, as printed by 'penstock lease'.")]
Settle = Callable[["Session", Receipt], str]  # returns the status of the delivery


def ack(broker: Broker, receipts: Receipts, as_json: AsJson = False) -> None:
    """Acknowledge messages: they are not delivered to this group again."""
    _each(broker, receipts, settling(Outcome.ACKED), as_json=as_json)


def nack(
    broker: Broker,
    receipts: Receipts,
    delay: Annotated[
        float | None, seconds_option("--delay", about="Retry after this time instead of the backoff.")
    ] = None,
    error: Annotated[str, typer.Option(help="What went wrong.")] = "",
    as_json: AsJson = False,
) -> None:
    """Report failure: retry after the queue's backoff, or dead-letter after the last attempt."""
    _each(broker, receipts, settling(Outcome.RETRIED, delay, error), as_json=as_json)


def reject(
    broker: Broker,
    receipts: Receipts,
    reason: Annotated[str, typer.Option(help="Why no retry would help.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give up on messages: they become dead letters at once."""
    _each(broker, receipts, settling(Outcome.REJECTED, error=reason), as_json=as_json)


def release(broker: Broker, receipts: Receipts, as_json: AsJson = False) -> None:
    """Return messages to the queue; the attempt does not count."""
    _each(broker, receipts, settling(Outcome.RELEASED), as_json=as_json)


def extend(
    broker: Broker,
    receipts: Receipts,
    seconds: Annotated[float, seconds_option("--for", about="The new lease time, from now.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Extend the leases behind these receipts."""
    from penstock import validation

    def prolong(session: Session, receipt: Receipt) -> str:
        until = to_datetime(session.extend(receipt.nonce, validation.extension(seconds)))
        return f"extended, ends {human.until(until)}"

    _each(broker, receipts, prolong, as_json=as_json)


def settling(outcome: Outcome, delay: float | None = None, error: str = "") -> Settle:
    """Settle one delivery like this."""
    from penstock import validation

    how = validation.settling(outcome, delay, error)

    def settle(session: Session, receipt: Receipt) -> str:
        session.settle((receipt,), how)
        return outcome.name.lower()

    return settle


def _each(broker: Broker, receipts: list[str], settle: Settle, *, as_json: bool) -> None:
    def change(receipt: Receipt) -> tuple[str, dict[str, str]]:
        status = settle(ps.session, receipt)
        text = f"{receipt.queue}/{receipt.partition}/{receipt.offset} {status}"
        return text, {"status": status.split(",", maxsplit=1)[0]}

    parsed = [Receipt.parse(text) for text in receipts]
    with broker.opened() as ps:
        output.change_each(parsed, "receipt", change, as_json=as_json)
