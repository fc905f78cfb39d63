"""The phases of a message: one table of legal moves, which every history keeps to and the glossary shows."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.entries import Span
from penstock.delivery.phases import AFTER, EVENTS, MOVES, Event, Phase
from penstock.delivery.progress import Progress
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import MessageId, Outcome
from penstock.shard.tasks import changes
from tests.support.dose import NIGHTLY, dose
from tests.support.life import LIFE
from tests.support.machine import QueueMachine
from tests.support.task_rig import Rig, task

Move = tuple[Phase, Event]


@contextmanager
def legal_moves() -> Iterator[Counter[Move]]:
    """Look each move up in `MOVES`; yields how often each was made. What is settled already may be named again."""
    made: Counter[Move] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "mark_leased", _watched(Progress.mark_leased, made, lambda *_: "lease"))
        patch.setattr(Progress, "become_ready", _watched(Progress.become_ready, made, lambda *_: "due"))
        patch.setattr(Progress, "revive", _watched(Progress.revive, made, lambda *_: "revive"))
        patch.setattr(Progress, "settle", _watched(Progress.settle, made, lambda outcome, *_: Outcome(outcome)))
        yield made


def _watched(method: Any, made: Counter[Move], event_of: Callable[..., Event]) -> Any:
    def watched(progress: Progress, span: Span | Iterable[int], *rest: Any) -> Any:
        offsets = span.offset_array().tolist() if isinstance(span, Span) else list(span)
        event = event_of(*rest)
        moves = [(Phase(progress.state_of(offset)), event) for offset in offsets]
        result = method(progress, span, *rest)
        for offset, move in zip(offsets, moves, strict=True):
            is_settled = move[0] == Phase.SETTLED and isinstance(event, Outcome)
            assert progress.state_of(offset) == (Phase.SETTLED if is_settled else MOVES[move]), move
        made.update(moves)
        return result

    return watched


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
        changes.cancel(rig.shard, MessageId(receipt.queue, receipt.partition, receipt.offset), run.task_id)
    assert (Phase.LEASED, Outcome.CANCELLED) in made


def test_the_glossary_shows_the_table():
    section = GLOSSARY.read_text(encoding="utf-8").partition("## Phases")[2].partition("\n## ")[0]
    shown = {event: (set(before.split(", ")), after) for before, event, after in ROW.findall(section)}
    names = {event: event.name.lower() if isinstance(event, Outcome) else event for event in EVENTS}

    assert shown == {
        names[event]: ({Phase(phase).name.lower() for phase in before}, Phase(after).name.lower())
        for event, (before, after) in EVENTS.items()
    }
