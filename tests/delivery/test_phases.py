"""The phases of a message: one table of legal moves, which every history keeps to and the glossary shows."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.phases import AFTER, EVENTS, MOVES, Phase
from penstock.embedded import BlockingSession, Session
from penstock.model import MessageId, Outcome
from penstock.shard import tasks as shard_tasks
from tests.support.dose import NIGHTLY, dose
from tests.support.life import LIFE
from tests.support.machine import QueueMachine
from tests.support.moves import legal_moves
from tests.support.tasking import Rig, task

GLOSSARY = Path(__file__).parent.parent.parent / "docs" / "glossary.md"
DOSE = settings(
    max_examples=dose(30, 500),
    stateful_step_count=dose(40, 50),
    deadline=None,
    derandomize=not NIGHTLY,
    database=None,
    suppress_health_check=list(HealthCheck),
)
ROW = re.compile(r"^\| ([\w, ]+) \| `(\w+)` \| (\w+) \|$", re.MULTILINE)


def test_every_outcome_has_a_move_and_leads_to_one_phase():
    assert AFTER.keys() == set(Outcome)
    for outcome in Outcome:
        assert {after for (_, event), after in MOVES.items() if event == outcome} == {AFTER[outcome]}


@pytest.mark.parametrize(
    "move",
    [
        (Phase.SETTLED, Outcome.ACKED),
        (Phase.FRESH, Outcome.ACKED),
        (Phase.READY, Outcome.RETRIED),
        (Phase.LEASED, Outcome.EXPIRED),
        (Phase.LEASED, "lease"),
        (Phase.WAITING, "lease"),
        (Phase.FRESH, "due"),
        (Phase.LEASED, "revive"),
    ],
)
def test_an_illegal_move_is_a_failed_lookup(move):
    with pytest.raises(KeyError):
        MOVES[move]


@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
def test_every_history_keeps_to_the_table(ordering):
    machine = type("Watched", (QueueMachine,), {"ordering": ordering})
    with legal_moves() as made:
        run_state_machine_as_test(machine, settings=DOSE)
    assert {(Phase.FRESH, "lease"), (Phase.LEASED, Outcome.ACKED), (Phase.WAITING, "due")} <= made.keys()


def test_a_day_of_a_shard_keeps_to_the_table(tmp_path):
    clock = ManualClock()
    session = Session(tmp_path, clock=clock, rng=random.Random(1), background=False, journal_file_bytes=1 << 16)
    with Penstock(BlockingSession(session)) as ps, legal_moves() as made:
        for step in LIFE:
            step(ps, clock)
    assert {(Phase.SETTLED, "revive"), (Phase.LEASED, Outcome.TIMED_OUT)} <= made.keys()


def test_a_cancelled_run_of_a_task_keeps_to_the_table():
    rig = Rig()
    with legal_moves() as made:
        rig.submit(task("a"))
        (run,) = rig.lease()
        receipt = run.receipt
        shard_tasks.cancel(rig.shard, MessageId(receipt.queue, receipt.partition, receipt.offset), run.task_id)
    assert (Phase.LEASED, Outcome.CANCELLED) in made


def test_the_glossary_shows_the_table():
    section = GLOSSARY.read_text(encoding="utf-8").partition("## Phases")[2].partition("\n## ")[0]
    shown = {event: (set(before.split(", ")), after) for before, event, after in ROW.findall(section)}
    names = {event: event.name.lower() if isinstance(event, Outcome) else event for event in EVENTS}

    assert shown == {
        names[event]: ({Phase(phase).name.lower() for phase in before}, Phase(after).name.lower())
        for event, (before, after) in EVENTS.items()
    }
