"""Commits that an event loop sends itself: as safe as those of a thread, and a thread takes over what is not plain."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

import penstock
from penstock.client.handles import AsyncPenstock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.session import Session
from penstock.errors import Deposed, OutcomeUnknown
from penstock.journal.commit import Confirmer, GroupCommit
from penstock.postgres.journal import SENT_BYTES_MAX, PostgresJournal
from penstock.postgres.store import PostgresStore
from tests.postgres.faulty import KINDS, FaultyLinks, faulty_store
from tests.postgres.test_nodes import until
from tests.postgres.test_unknown_commits import asked_none, opened, renewals, rows_of
from tests.support.broker_loop import until as turns_until
from tests.support.dose import dose

PATIENCE_SECONDS = 60.0
FRAME = bytes(64)


class Rig:
    """A journal, and the confirmer of a loop that commits to it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.store, self.links = faulty_store(url, **options)
        self.journal: PostgresJournal = opened(self.store)
        self.commit = GroupCommit(self.journal)
        self.sent: list[bool] = []  # of each commit, whether the loop sent it itself

    def run(self, test: Callable[[Confirmer], Coroutine[Any, Any, None]]) -> None:
        """Run on a loop, and close. The first commit is a thread's: it connects."""

        async def main() -> None:
            confirmer = Confirmer(self.commit, asyncio.get_running_loop())
            await confirmer.future(self.journal.append(FRAME))
            sending, send = confirmer._sending, confirmer._sending.send

            def noted() -> bool:
                self.sent.append(send())
                return self.sent[-1]

            sending.send = noted  # type: ignore[method-assign]
            await asyncio.wait_for(test(confirmer), PATIENCE_SECONDS)
            confirmer.close()

        asyncio.run(main())
        self.commit.close()
        self.journal.close()
        self.store.close()


def test_a_plain_commit_is_sent_and_received_by_the_loop(url):
    rig = Rig(url)
    timed: list[str] = []
    rig.commit.begun = lambda: timed.append("begun") or (lambda: timed.append("ended"))  # type: ignore[func-returns-value]

    async def test(confirmer: Confirmer) -> None:
        for _ in range(3):
            rig.journal.append(FRAME)
            await confirmer.future(rig.journal.append(FRAME))

    rig.run(test)
    assert rig.sent == [True] * 3
    assert timed == ["begun", *["begun", "ended"] * 3]  # the first is left to a thread
    assert rows_of(url) == [(1, 2), (2, 4), (4, 6), (6, 8)]


def test_frames_that_come_while_a_commit_is_under_way_share_the_next(url):
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        futures = []
        for _ in range(40):
            futures.append(confirmer.future(rig.journal.append(FRAME)))
            await asyncio.sleep(0)
        await asyncio.gather(*futures)

    rig.run(test)
    assert len(rows_of(url)) < 20
    assert rows_of(url)[-1][1] == 42


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_of_a_loop_whose_answer_is_lost_is_stored_once(url, kind):
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        rig.links.plan = [kind]
        rig.journal.append(FRAME)
        await confirmer.future(rig.journal.append(FRAME))
        await confirmer.future(rig.journal.append(FRAME))

    rig.run(test)
    assert rows_of(url) == [(1, 2), (2, 4), (4, 5)]


def test_a_warning_that_a_commit_was_not_replicated_is_no_success_on_a_loop_either(url):
    rig = Rig(url)
    table = rig.journal._table

    async def test(confirmer: Confirmer) -> None:
        asked_none(
            url,
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication' USING ERRCODE = '01000';"
            " RETURN NEW; END $$",
        )
        asked_none(url, f"CREATE TRIGGER warn BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION warn()")
        before = renewals(url)
        await confirmer.future(rig.journal.append(FRAME))
        assert renewals(url) == before + 1  # it was looked up, and made sure of

    rig.run(test)
    assert rows_of(url) == [(1, 2), (2, 3)]


def test_a_loop_whose_term_is_over_confirms_nothing(url):
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        asked_none(url, "UPDATE penstock.shards SET term = term + 1")
        future = confirmer.future(rig.journal.append(FRAME))
        with pytest.raises(OutcomeUnknown, match="another node has taken over"):
            await future
        assert isinstance(rig.journal.failed, Deposed)

    rig.run(test)
    assert rig.sent == [True]
    assert rows_of(url) == [(1, 2)]


def test_a_thread_takes_over_what_a_loop_has_sent_and_both_are_answered(url):
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        with psycopg.connect(url) as blocker:
            blocker.execute("SELECT 1 FROM penstock.shards FOR UPDATE")
            ours = confirmer.future(rig.journal.append(FRAME))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert rig.journal._sent is not None
            theirs = rig.journal.append(FRAME)
            thread = threading.Thread(target=rig.commit.wait, args=(theirs,))
            thread.start()
            await turns_until(lambda: rig.journal._sent is None)
            assert not ours.done()
            blocker.rollback()
        await ours
        await asyncio.to_thread(thread.join)

    rig.run(test)
    assert rows_of(url) == [(1, 2), (2, 3), (3, 4)]


def test_a_loop_that_nobody_notifies_finds_out_that_another_has_the_answer_and_sends_again(url, monkeypatch):
    monkeypatch.setattr("penstock.journal.loop_commit.PATIENCE_SECONDS", 0.05)
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        confirmer._sending._taken_over = lambda number: None  # type: ignore[method-assign] # it was interrupted
        with psycopg.connect(url) as blocker:
            blocker.execute("SELECT 1 FROM penstock.shards FOR UPDATE")
            ours = confirmer.future(rig.journal.append(FRAME))
            thread = threading.Thread(target=rig.commit.wait, args=(rig.journal.append(FRAME),))
            await turns_until(lambda: rig.journal._sent is not None)
            thread.start()
            await turns_until(lambda: rig.journal._sent is None)
            blocker.rollback()
        await asyncio.to_thread(thread.join)
        await ours
        await turns_until(lambda: not confirmer._sending.is_sent)
        await confirmer.future(rig.journal.append(FRAME))

    rig.run(test)
    assert rig.sent[-1] is True


def test_two_loops_share_a_connection_and_each_is_answered(url):
    rig = Rig(url)
    answered: list[int] = []
    lock = threading.Lock()  # as a shard has one

    def appended() -> int:
        with lock:
            return rig.journal.append(FRAME)

    def other() -> None:
        async def push() -> None:
            confirmer = Confirmer(rig.commit, asyncio.get_running_loop())
            for _ in range(100):
                await confirmer.future(appended())
                answered.append(1)
            confirmer.close()

        asyncio.run(push())

    async def test(confirmer: Confirmer) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        for _ in range(100):
            await confirmer.future(appended())
        await asyncio.to_thread(thread.join)

    rig.run(test)
    assert len(answered) == 100
    assert rig.journal.durable_sequence == 201


def test_a_late_answer_is_waited_for_by_a_thread_up_to_its_deadline_and_the_row_is_stored_once(url, monkeypatch):
    monkeypatch.setattr("penstock.journal.loop_commit.PATIENCE_SECONDS", 0.05)
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        link: Any = rig.journal._link
        link._seconds = 0.3
        with psycopg.connect(url) as blocker:
            blocker.execute("SELECT 1 FROM penstock.shards FOR UPDATE")
            future = confirmer.future(rig.journal.append(FRAME))
            await turns_until(
                lambda: rig.journal._link is not link
            )  # the deadline has closed it; nothing was cancelled
            assert not future.done()
            blocker.rollback()
        await future

    rig.run(test)
    assert rows_of(url) == [(1, 2), (2, 3)]


def test_a_connection_that_ends_while_the_loop_is_idle_is_replaced_and_leaves_nothing_open(url):
    rig = Rig(url)

    async def test(confirmer: Confirmer) -> None:
        await confirmer.future(rig.journal.append(FRAME))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            asked_none(
                url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            await turns_until(lambda: confirmer._sending._watched is None)
            for _ in range(2):  # a thread connects, then the loop sends again
                await confirmer.future(rig.journal.append(FRAME))
            assert confirmer._sending._watched is rig.journal._link
        assert len(os.listdir("/proc/self/fd")) == before

    rig.run(test)
    assert rig.sent.count(True) >= 4


def test_large_rows_and_new_files_are_left_to_a_thread(url):
    rig = Rig(url, file_bytes=4 * SENT_BYTES_MAX)

    async def test(confirmer: Confirmer) -> None:
        for size in (SENT_BYTES_MAX + 8, 1 << 17, *[1 << 16] * 16):
            await confirmer.future(rig.journal.append(bytes(size)))

    rig.run(test)
    assert rig.sent[:2] == [False, True]
    assert rig.sent.count(False) >= 2  # the large one, and at least one new file
    assert len(rig.journal.full_files()) >= 1
    assert rig.journal.durable_sequence == 19


def test_a_loop_that_vanished_with_a_commit_under_way_disturbs_nobody(url):
    rig = Rig(url)

    async def abandoned() -> None:
        confirmer = Confirmer(rig.commit, asyncio.get_running_loop())
        await confirmer.future(rig.journal.append(FRAME))
        confirmer.future(rig.journal.append(FRAME))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.journal._sent is not None

    async def test(confirmer: Confirmer) -> None:
        await confirmer.future(rig.journal.append(FRAME))

    asyncio.run(abandoned())
    rig.run(test)
    assert rig.journal.durable_sequence == 4


@pytest.mark.parametrize("seed", range(dose(3, 100)))
def test_whatever_connections_do_a_loop_loses_and_doubles_nothing_confirmed(url, seed):
    store, links = faulty_store(url, seed, rate=0.0, file_bytes=1 << 14)
    session = Session(None, store=store, background=False, rng=random.Random(seed))
    confirmed, acked = asyncio.run(_worked(session, links, random.Random(seed)))
    session.close()

    async def left() -> list[bytes]:
        reopened = Session(None, store=PostgresStore(url, node="test"), background=False)
        ps = AsyncPenstock(lambda: AsyncSession(reopened))
        messages = [delivery.payload for delivery in await ps.queue("q").lease(max=1000)]
        assert (await ps.queue("q").stats()).messages == len(confirmed)
        await ps.close()
        return messages

    assert sorted(asyncio.run(left())) == sorted(confirmed - acked)


async def _worked(session: Session, links: FaultyLinks, rng: random.Random) -> tuple[set[bytes], set[bytes]]:
    """Eight tasks push, lease and acknowledge while connections fail, and threads commit beside them."""
    ps = AsyncPenstock(lambda: AsyncSession(session))
    queue, confirmed, acked = ps.queue("q"), set[bytes](), set[bytes]()
    keeper: Any = session.keeper

    async def work(number: int) -> None:
        for step in range(12):
            payload = b"%d-%d" % (number, step)
            await queue.push(payload)
            confirmed.add(payload)
            if rng.random() < 0.4:
                for delivery in await queue.lease(max=rng.randrange(1, 4)):
                    if rng.random() < 0.8:
                        await delivery.ack()
                        acked.add(delivery.payload)
                    else:
                        await delivery.release()
            if rng.random() < 0.1:
                await asyncio.to_thread(keeper.tick)
            if rng.random() < 0.1:
                await asyncio.to_thread(session.shard.journal.sync)

    await queue.push(b"first")
    confirmed.add(b"first")
    links.rate = 0.15
    await asyncio.gather(*(work(number) for number in range(8)))
    links.rate = 0.0
    return confirmed, acked


def test_a_node_confirms_without_its_commit_thread(run_node):
    node = run_node("a")
    until(lambda: node.status() == "ok")
    with penstock.connect(node.url()) as ps:
        queue = ps.queue("q")
        queue.push(b"1")  # a thread connects
        server: Any = node.node._server
        commit = server.broker.shard.commit
        leads = commit._leads
        for _ in range(20):
            queue.push(b"2")
        queue.lease(max=10).ack()
        # Upkeep commits by itself now and then; twenty pushes, a lease and an ack do not.
        assert commit._leads - leads < 11
