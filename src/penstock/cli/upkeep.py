"""`penstock seal` and `penstock sync`: upkeep that a broker does by itself, now."""

from __future__ import annotations

from penstock.cli import output
from penstock.cli.options import AsJson
from penstock.cli.target import Broker
from penstock.units import plural


def seal(broker: Broker, as_json: AsJson = False) -> None:
    """Write everything so far to the Parquet history, full journal file or not."""
    with broker.opened() as ps:
        sealed = ps.seal()
    output.done(f"sealed {plural(sealed, 'journal file')}", {"sealed": sealed}, as_json=as_json)


def sync(broker: Broker, as_json: AsJson = False) -> None:
    """Have the disk store everything so far, whatever the durability."""
    with broker.opened() as ps:
        sequence = ps.sync()
    output.done(f"durable up to frame {sequence:,}", {"sequence": sequence}, as_json=as_json)
