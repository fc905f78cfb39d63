"""`penstock ack`, `nack`, `reject`, `release`, `extend`: end or prolong a delivery by its receipt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import human, output
from penstock.cli.exits import exit_code
from penstock.cli.options import AsJson, ContextOption, Url, seconds_option
from penstock.cli.target import opened
from penstock.errors import PenstockError
from penstock.model import Outcome, Receipt, to_datetime

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.client.session import Session

Receipts = Annotated[list[str], typer.Argument(metavar="RECEIPT…", help="As 'penstock lease' printed them.")]
Settle = Callable[["Penstock", Receipt], str]  # answers with what became of it


def ack(receipts: Receipts, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Done: they will not be delivered to this group again."""
    _each(receipts, settling(Outcome.ACKED), url, context, as_json=as_json)


def nack(
    receipts: Receipts,
    delay: Annotated[
        float | None, seconds_option("--delay", about="Retry after so long, not after the backoff.")
    ] = None,
    error: Annotated[str, typer.Option(help="What went wrong.")] = "",
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Failed: retry after the queue's backoff; a dead letter after the last attempt."""
    _each(receipts, settling(Outcome.RETRIED, delay, error), url, context, as_json=as_json)


def reject(
    receipts: Receipts,
    reason: Annotated[str, typer.Option(help="Why it is hopeless.")] = "",
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Hopeless: a dead letter at once."""
    _each(receipts, settling(Outcome.REJECTED, error=reason), url, context, as_json=as_json)


def release(receipts: Receipts, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Give them back; the attempt does not count."""
    _each(receipts, settling(Outcome.RELEASED), url, context, as_json=as_json)


def extend(
    receipts: Receipts,
    seconds: Annotated[float, seconds_option("--for", about="From now.")] = 30.0,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Hold the leases behind these receipts for longer."""
    from penstock import arguments

    def prolong(ps: Penstock, receipt: Receipt) -> str:
        until = to_datetime(session_of(ps).extend(receipt.nonce, arguments.extension(seconds)))
        return f"extended, ends {human.until(until)}"

    _each(receipts, prolong, url, context, as_json=as_json)


def settling(outcome: Outcome, delay: float | None = None, error: str = "") -> Settle:
    """Settle one delivery like this."""
    from penstock import arguments

    how = arguments.settling(outcome, delay, error)

    def settle(ps: Penstock, receipt: Receipt) -> str:
        session = session_of(ps)
        session.confirm(session.settle((receipt,), how))
        return outcome.name.lower()

    return settle


def session_of(ps: Penstock) -> Session:
    """Programs hold deliveries and settle those; only here there is nothing but a receipt."""
    return ps._session


def _each(receipts: list[str], settle: Settle, url: str | None, context: str | None, *, as_json: bool) -> None:
    """Receipts stand for themselves: one that is refused does not keep the others from being settled."""
    proofs = [Receipt.parse(text) for text in receipts]
    worst = 0
    with opened(url, context) as ps:
        for proof in proofs:
            try:
                status = settle(ps, proof)
            except PenstockError as error:
                if len(proofs) == 1:
                    raise
                worst = max(worst, exit_code(error))
                _write_refused(proof, error, as_json=as_json)
            else:
                _write_settled(proof, status, as_json=as_json)
    if worst:
        raise typer.Exit(worst)


def _write_settled(proof: Receipt, status: str, *, as_json: bool) -> None:
    if as_json:
        output.write_json_line({"receipt": str(proof), "status": status.split(",", maxsplit=1)[0]})
    else:
        output.write(f"[green]✓[/] {proof.queue}/{proof.partition}/{proof.offset} {status}")


def _write_refused(proof: Receipt, error: PenstockError, *, as_json: bool) -> None:
    told: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint}
    if as_json:
        output.write_json_line({"receipt": str(proof), "status": "refused", "error": told})
    else:
        output.write_error(error.code, f"{proof}: {error.message}", error.hint, as_json=False)
