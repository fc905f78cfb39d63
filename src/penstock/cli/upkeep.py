"""`penstock seal` and `penstock sync`: upkeep that a broker does by itself, now; and `penstock profile`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.options import AsJson, seconds_option
from penstock.cli.target import Broker
from penstock.units import plural


def seal(broker: Broker, as_json: AsJson = False) -> None:
    """Write everything so far to the Parquet history now."""
    with broker.opened() as ps:
        sealed = ps.seal()
    output.done(f"sealed {plural(sealed, 'journal file')}", {"sealed": sealed}, as_json=as_json)


def sync(broker: Broker, as_json: AsJson = False) -> None:
    """Sync everything so far to disk, whatever the durability level."""
    with broker.opened() as ps:
        sequence = ps.sync()
    output.done(f"durable up to frame {sequence:,}", {"sequence": sequence}, as_json=as_json)


def profile(
    broker: Broker,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="cpu, memory or threads.")] = "cpu",
    seconds: Annotated[float, seconds_option("--for", about="How long to sample, at most 1m.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Profile the broker: where it spends CPU time, what allocates memory, or all thread stacks."""
    from penstock import operations as ops

    with broker.opened() as ps:
        text = ps.session.execute(ops.TakeProfile(what, seconds))  # type: ignore[arg-type]
    if as_json:
        output.write_json({"what": what, "text": text})
    else:
        output.write_plain(text.rstrip("\n"))
