"""A real broker under clients of every kind, ended again and again: by kill -9, and in good order.

The clients know nothing of it: they reconnect and go on. What they were told must be true in the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from penstock.embedded.session import Session
from tests.support import client_load
from tests.support.broker_restarts import Restarting
from tests.support.client_load import Crowd
from tests.support.dose import dose
from tests.support.recorded import Record, attempts_have_causes, problems

KILLS, STOPS = dose(ci=5, nightly=8), dose(ci=3, nightly=4)  # on one directory
ROUNDS = dose(ci=1, nightly=125)
OPERATIONS_MAX = dose(ci=1000, nightly=2000)  # between two ends


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_what_was_confirmed_to_clients_holds_over_kill_9(tmp_path, seed):
    rng = random.Random(seed)
    with Restarting(tmp_path, rng) as broker:
        record = run(broker, rng, broker.kill, KILLS)

    assert problems(record.history, client_load.one_result) == []


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_broker_that_stops_in_good_order_costs_nobody_an_attempt(tmp_path, seed):
    rng = random.Random(seed)
    codes = []
    with Restarting(tmp_path, rng, "--drain-seconds", "100") as broker:
        record = run(broker, rng, lambda: codes.append(broker.stop()), STOPS)
        assert broker.stop() == 0

    assert set(codes) == {0}
    assert problems(record.history, client_load.one_result, attempts_have_causes) == []
    assert [line for line in broker.served.logs() if line["level"] not in ("info", "debug")] == []
    checkpointed = json.loads((tmp_path / "data/checkpoints/manifest.json").read_text())["sequence"]
    session = Session(tmp_path / "data", background=False)
    assert session.shard.journal.sequence <= checkpointed + 1  # nothing to be read again; opening notes that it was
    session.close()


def run(broker: Restarting, rng: random.Random, end: Callable[[], object], times: int) -> Record:
    """Let the crowd work; end the broker at random moments; see what is left."""
    record = client_load.record()
    client_load.prepare(broker.url)
    people = Crowd(broker, record)
    people.start()
    for _ in range(times):
        record.until(more=rng.randint(1, OPERATIONS_MAX))
        end()
        broker.start()
    record.until(more=OPERATIONS_MAX)
    people.stop()
    end()
    broker.start()
    client_load.drain(broker.url, record)
    return record
