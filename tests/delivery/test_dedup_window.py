"""The dedup window: whatever is frozen, merged, forgotten, written and mapped, it answers as a dictionary would."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Batch, Message, limits
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery import dedup
from penstock.delivery.dedup import ENTRY, DedupRecord, DedupWindow, Hashes, Run, digest, merged, run_of
from penstock.delivery.entries import Push
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.storage.disk import RealDisk
from penstock.verify import verify
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.operations import run_operation

SECONDS = 60
KEYS = [f"k{number}" for number in range(40)]


def learn(window: DedupWindow, keys: list[str], first: int, at: int) -> None:
    batch = Batch.build([Message(payload=b"", dedup_key=key) for key in keys])
    window.apply(Push(1, at, [(0, len(keys), first)], batch.data), batch)


def small(**limits_: int) -> ExitStack:
    """Runs of a few keys."""
    stack = ExitStack()
    for name, number in {"HOT_MAX": 4, "AT_ONCE_MAX": 16, **limits_}.items():
        stack.enter_context(patch.object(dedup, name, number))
    return stack


def merge_all(window: DedupWindow, now: int, keys_max: int = 1 << 30) -> None:
    while (pair := window.mergeable(keys_max)) is not None:
        window.merge(pair, merged(window.runs[pair[0]], window.runs[pair[1]], now - window.window))


STEPS = st.one_of(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=6, unique=True).map(lambda keys: ("push", keys)),
    st.sampled_from([("wait", 7), ("wait", 61), ("freeze", 0), ("merge", 8), ("merge", 1000)]),
)


@settings(max_examples=dose(150, 5_000), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_answers_as_a_dictionary_would(steps):
    window, known, now, offset = DedupWindow(SECONDS), dict[str, DedupRecord](), 1_000_000, 0
    with small():
        for what, given_ in steps:
            if what == "push":
                places = window.find_all([digest(key) for key in given_], now)
                assert places == [window.find(digest(key), now) for key in given_]
                new = [key for key, place in zip(given_, places, strict=True) if place is None]
                if new:
                    learn(window, new, offset, now)
                    known |= {key: DedupRecord(0, offset + row, now) for row, key in enumerate(new)}
                    offset += len(new)
            elif what == "wait":
                now += given_ * 1_000_000
            elif what == "freeze":
                window.freeze()
            else:
                merge_all(window, now, given_)
            expected = [known.get(key) for key in KEYS]
            expected = [place if place and place.pushed_at > now - window.window else None for place in expected]
            assert window.find_all([digest(key) for key in KEYS], now) == expected
            assert list(window.runs) == sorted(window.runs)


def test_rows_without_a_key_are_nobodys_duplicates():
    window = DedupWindow(SECONDS)
    learn(window, ["a"], 0, 1)
    window.freeze()

    assert window.find_all([None, digest("a"), None, digest("b")], 2) == [None, DedupRecord(0, 0, 1), None, None]
    assert window.find_all([None], 2) == [None]


def test_keys_whose_hashes_begin_alike_are_distinguished():
    twins = [b"\x01" * 8 + bytes([number]) * 8 for number in range(4)]
    window = DedupWindow(SECONDS)
    for number, key in enumerate(twins[:3]):
        window.add_run(
            Run(run_of({key: DedupRecord(0, number, 10 + number), twins[0]: DedupRecord(1, number, 10 + number)}))
        )
    merge_all(window, 20)

    assert len(window.runs) == 1
    found = window.find_all(twins, 20)
    assert found == [DedupRecord(1, 2, 12), DedupRecord(0, 1, 11), DedupRecord(0, 2, 12), None]
    assert found == [window.find(key, 20) for key in twins]


def test_a_batch_asks_each_run_once_and_new_keys_need_their_hashes_alone(monkeypatch):
    window = DedupWindow(SECONDS)
    for start in range(0, 15_000, 5_000):
        learn(window, [f"old-{number}" for number in range(start, start + 5_000)], start, 1)
        window.freeze()
    asked: list[int] = []
    whole = Run.candidates

    def candidates(run: Run, highs: Hashes) -> list[int]:
        asked.append(len(highs))
        return whole(run, highs)

    monkeypatch.setattr(Run, "candidates", candidates)
    for run in window.runs.values():
        assert run.hashes.flags.c_contiguous
        assert run.hashes.base is None  # its own memory, and none of the rest's
        run.records = np.empty(0, ENTRY)  # whoever looks here is told

    new = [digest(f"new-{number}") for number in range(1_000)]

    assert window.find_all(new, 2) == [None] * 1_000
    assert asked == [1_000] * 3


def test_runs_are_few_whatever_the_number_of_keys():
    with small():
        window = DedupWindow(SECONDS)
        for number in range(4_000):
            learn(window, [f"k{number}"], number, 1)
        assert len(window.runs) <= 4_000 / 16 + 3  # merged at once, as far as that goes
        merge_all(window, 1)

    assert len(window.runs) <= 12
    assert len(window) == 4_000


def test_over_the_limit_only_a_share_is_forgotten(monkeypatch):
    monkeypatch.setattr(limits, "dedup_keys_max", 1_600)
    with small():
        window = DedupWindow(SECONDS)
        for number in range(3_000):
            learn(window, [f"k{number}"], number, 1)
            merge_all(window, 1, 100)
            assert len(window) <= 1_600 + 4  # what is in the dictionary is counted when it is full
            if number > 1_600:
                assert len(window) > 1_400
    assert window.overflowed


def session_on(path: Path, clock: ManualClock) -> Session:
    return Session(path, durability="os", clock=clock, rng=random.Random(1), background=False)


def test_runs_are_mapped_from_the_checkpoint_and_kept_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.shard.checkpoints.MAPPED_MIN", 1)
    path, clock = tmp_path / "data", ManualClock()
    keys = [Message(payload=b"", dedup_key=f"k{number}") for number in range(200)]
    with small(HOT_MAX=50):
        session = session_on(path, clock)
        first = Penstock(BlockingSession(session)).queue("mail").push_many(keys).ids
        session.checkpoint()
        window = session.shard.core.by_name["mail"].dedup
        assert window is not None
        assert {run.records.base is not None for run in window.runs.values()} == {True}
        session.close()

        session = session_on(path, clock)
        queue = Penstock(BlockingSession(session)).queue("mail")
        written = {name: (path / name).stat().st_ino for name in run_files(path)}
        assert queue.push_many(keys).ids == first
        queue.push(b"other")
        session.checkpoint()
        assert {name: (path / name).stat().st_ino for name in run_files(path)} == written
        assert queue.push_many(keys).ids == first
        session.close()
    assert verify(RealDisk(path), clock.now()).problems == []


def run_files(path: Path) -> list[str]:
    found = sorted(f"checkpoints/{file.name}" for file in (path / "checkpoints").glob("dedup-*"))
    assert found
    return found


def test_files_that_are_gone_can_still_be_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.shard.checkpoints.MAPPED_MIN", 1)
    path, clock = tmp_path / "data", ManualClock()
    session = session_on(path, clock)
    with small(), Penstock(BlockingSession(session)) as ps:
        queue = ps.queue("mail")
        ids = [queue.push(b"", dedup_key=f"k{number}") for number in range(64)]
        for _ in range(3):
            session.checkpoint()  # merges, and removes what was merged
            clock.advance(0.1)
            ids.append(queue.push(b"", dedup_key=f"k{len(ids)}"))
            assert [queue.push(b"", dedup_key=f"k{number}") for number in range(len(ids))] == ids


@pytest.mark.parametrize("seed", range(dose(6, 100)))
def test_keys_are_known_wherever_the_power_is_cut(seed):
    """Checkpoints with merges, cut at a random operation; what was confirmed is known afterwards."""
    rng = random.Random(seed)
    disk, clock, known = ForgetfulDisk(seed), ManualClock(), dict[str, object]()
    with small(HOT_MAX=8, AT_ONCE_MAX=16):
        for life in range(6):
            session = Session(
                None, disk=disk, clock=clock, rng=random.Random(life), background=False, journal_file_bytes=1 << 16
            )
            queue = Penstock(BlockingSession(session)).queue("mail")
            for key, id in known.items():
                assert queue.push(b"again", dedup_key=key) == id
            for _ in range(4):
                for number in range(10):
                    key = f"{life}-{len(known)}-{number}"
                    known[key] = queue.push(b"", dedup_key=key)
                disk.crash_at(rng.randrange(1, 40))
                with suppress(PowerCut):
                    works: list[Callable[[], object]] = [
                        session.checkpoint,
                        partial(run_operation, session, ops.Seal()),
                    ]
                    work = rng.choice(works)
                    work()
                    disk.kill()
                if disk.fired:
                    break
            disk = disk.crash()
