"""The broker: every request, of whatever protocol, comes by here.

May they? Then the shard, on the event loop's own thread, and the answer once it is durable. The callback forms cost
least: `told` is called exactly once, on the loop, with the result or with a `PenstockError` as a value; they never
raise. Nothing here blocks: what may read a file runs in a thread, and pushes that must wait for the sealer are held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from penstock.batch import Batch
from penstock.broker import calls
from penstock.broker.access import Action, Authorise, Client, allow_all
from penstock.broker.answers import Told, answer_of
from penstock.broker.awaited import Awaited
from penstock.broker.confirming import Confirmer
from penstock.broker.events import Events
from penstock.broker.folding import Content, Folder, Kind, Producer
from penstock.broker.leasing import Pending
from penstock.broker.listening import ALL_TASKS, QUEUES, Listener, TasksWanted, Topic
from penstock.broker.settling import SettleEach
from penstock.broker.streaming import Stream, StreamRequest
from penstock.broker.tasks import BEGUN, Tasks
from penstock.broker.unread import Unread
from penstock.broker.waits import Wait, stopping
from penstock.embedded import Session
from penstock.engine import Ticket
from penstock.errors import BadRequest, PenstockError
from penstock.model import ContentType, Durability, Outcome, Receipt
from penstock.replies import LeaseReply, SinkState
from penstock.requests import LeaseRequest, PartitionChoice, Settling
from penstock.telemetry import Meter
from penstock.transactions import transact
from penstock.version import VERSION
from penstock.wire.calls import Arguments, CancelTask, CommitSink, FindTask, RetryTask, ServerInfo, Transact

logger: Final = logging.getLogger("penstock.broker")
_MAY_READ_FILES: Final = (Outcome.RETRIED, Outcome.REJECTED)  # a dead letter is a copy, made when it is settled


class Broker(Awaited):
    """See the module's rules. Make it on the running loop; `close` ends it, the session stays open."""

    def __init__(self, session: Session, *, authorise: Authorise = allow_all, meter: Meter | None = None) -> None:
        self.session = session
        self.shard = session.shard
        self.clock = session.shard.clock
        self.meter = meter or Meter()
        self.authorise = authorise
        self.loop = asyncio.get_running_loop()
        self.confirmer = Confirmer(self.shard, self.loop)
        self.waiting: set[Pending] = set()  # leases with nothing to give yet
        self.streams: set[Stream] = set()
        self.waits: set[Wait] = set()  # for tasks, and for news
        self.tasks = Tasks(self)
        self.events = Events(session)
        self.is_draining = False
        self.unread = Unread()
        self._folder = Folder(
            self.loop, self.shard.push_folded, self._after_fold, self.confirmer.is_syncing, self._stored, self.count
        )
        self.confirmer.on_sync = self._folder.flush
        self._held: deque[Callable[[], None]] = deque()  # pushes while the sealer is behind

    # pushing

    def push_one(
        self,
        client: Client,
        queue: str,
        payload: bytes,
        producer: Producer | None,
        told: Told,
        content: Content = ContentType.BYTES,
    ) -> None:
        """One message, folded with those that arrive together; `told((partition, offset))`."""
        refused = self.refused(client, Action.PUSH, queue)
        if refused is not None:
            told(refused)
        elif self.is_holding:
            self.hold(partial(self.push_one, client, queue, payload, producer, told, content))
        else:
            kind = (queue, client.identity, client.protocol, content)
            self._folder.add(kind, payload, producer, told)

    def push(
        self,
        client: Client,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        producer: Producer | None,
        told: Told,
    ) -> None:
        """A batch that was checked; `told(PushReply)`."""
        refused = self.refused(client, Action.PUSH, queue)
        if refused is not None:
            told(refused)
            return
        if self.is_holding:
            self.hold(partial(self.push, client, queue, batch, partition, durability, producer, told))
            return
        started = self.clock.monotonic()
        self.flush()
        answer = answer_of(lambda: self.shard.push(queue, batch, partition, durability, producer, client.identity))
        if isinstance(answer, PenstockError):
            told(self.count(queue, answer))
            return
        reply, ticket = answer
        self.meter.pushed(queue, client.protocol, batch.count, batch.payload_bytes)
        self.confirmer.after(ticket, partial(self.timed, "push", started, told), reply)

    def _stored(self, kind: Kind, messages: int, nbytes: int) -> None:
        self.meter.pushed(kind[0], kind[2], messages, nbytes)

    def _after_fold(self, ticket: int, told: Told, answer: Any) -> None:
        self.confirmer.after(ticket, partial(self.timed, "push", self.clock.monotonic(), told), answer)

    # leasing

    def lease(
        self,
        client: Client,
        queue: str,
        group: str,
        request: LeaseRequest,
        wait_seconds: float,
        told: Told,
    ) -> Pending:
        """Up to so many messages; `told(LeaseReply)`, its rows loaded. Cancel it when the client goes away."""
        self.flush()
        asked = msgspec.structs.replace(request, client=client.identity)
        pending = Pending(self, queue, group, asked, 0.0 if self.is_draining else wait_seconds, told)
        refused = self.refused(client, Action.LEASE, queue)
        if refused is not None:
            pending.cancel()
            told(refused)
            return pending
        pending.start()
        return pending

    def stream(
        self,
        client: Client,
        request: StreamRequest,
        deliver: Callable[[LeaseReply], None],
        ended: Callable[[PenstockError | None], None],
    ) -> Stream:
        """Deliveries as they come, within the credit that is given; raises when the request is wrong."""
        refused = self.refused(client, Action.LEASE, request.queue)
        if refused is not None:
            raise refused
        stream = Stream(self, client, request, deliver, ended)
        self.streams.add(stream)
        return stream

    def listen(
        self,
        client: Client,
        queues: Collection[str] | None,
        interval_seconds: float,
        wake: Callable[[], None],
        topics: Collection[Topic] = QUEUES,
        wanted: TasksWanted = ALL_TASKS,
    ) -> Listener:
        """Live events of some queues, or of all; raises when they may not be heard."""
        action = Action.READ if "tasks" in topics else Action.MONITOR
        for queue in ("",) if queues is None else queues:
            refused = self.refused(client, action, queue)
            if refused is not None:
                raise refused
        return self.events.listen(queues, interval_seconds, wake, topics, wanted)

    def measure_lease(self, reply: LeaseReply, started: int) -> None:
        """Count what was handed out."""
        now = self.clock.now()
        for piece in reply.pieces:
            self.meter.leased(reply.queue, reply.group, len(piece.offsets), max(0, now - piece.pushed(0)) / 1e6)
        self.meter.took("lease", (self.clock.monotonic() - started) / 1e6)

    # settling

    def settle(self, client: Client, receipts: Sequence[Receipt], how: Settling, told: Told) -> None:
        """End deliveries, all of them or none; `told(None)`."""
        self._settle(client, {receipt.queue for receipt in receipts}, how, told, self.session.settle, receipts)

    def settle_lease(self, client: Client, nonce: int, how: Settling, told: Told) -> None:
        """End all deliveries that a lease still holds; `told(None)`."""
        self._settle(client, self._queues_of(nonce), how, told, self.session.settle_lease, nonce)

    def _settle(
        self, client: Client, queues: set[str], how: Settling, told: Told, settle: Callable[..., int], what: Any
    ) -> None:
        for queue in queues:
            refused = self.refused(client, Action.SETTLE, queue, even_draining=True)
            if refused is not None:
                told(refused)
                return
        started = self.clock.monotonic()

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                told(self.count(min(queues, default=""), answer))
            else:
                self.confirmer.after(answer, partial(self.timed, "settle", started, told), None)

        if how.outcome in _MAY_READ_FILES and self.shard.store is not None:
            self.in_thread(partial(settle, what, how), answered)
        else:
            answered(answer_of(partial(settle, what, how)))

    def settle_each(self, client: Client, receipts: Sequence[Receipt], how: Settling, told: Told) -> None:
        """End deliveries, each by itself when not all of them can be; `told([None or PenstockError, …])`."""
        SettleEach(self, client, receipts, how, told).start()

    def extend(self, client: Client, nonce: int, seconds: float, told: Told) -> None:
        """Hold a lease longer; `told(when it expires now)`."""
        for queue in self._queues_of(nonce):
            refused = self.refused(client, Action.SETTLE, queue, even_draining=True)
            if refused is not None:
                told(refused)
                return
        answer = answer_of(partial(self.session.extend, nonce, seconds))
        told(self.count("", answer) if isinstance(answer, PenstockError) else answer)

    def _queues_of(self, nonce: int) -> set[str]:
        lease = self.shard.core.leases.get(nonce)
        return set() if lease is None else {lease.group.queue.name}

    # everything else

    async def call(self, client: Client, name: str, given: Arguments) -> Any:
        """One of the operations of wire/calls.py."""
        with self.counting(""):
            given.check()
        if name == "info":
            return self._info()
        if isinstance(given, Transact):
            return await self.transacted(client, given, None)
        if isinstance(given, CommitSink):
            return await self._sink_committed(client, given)
        if type(given) in BEGUN:
            return await self.tasks.begun(client, given)
        if isinstance(given, FindTask | CancelTask | RetryTask):
            return await self.tasks.of_one(client, given)
        handler = calls.HANDLERS.get(name)
        if handler is None:
            raise BadRequest(f"call: there is no operation {name!r}")
        only_looks = handler.action in (Action.READ, Action.MONITOR)
        refused = self.refused(client, handler.action, handler.queue(given), even_draining=only_looks)
        if refused is not None:
            raise refused
        self.flush()
        with self.counting(handler.queue(given)):
            answer = await asyncio.to_thread(handler.run, self.session, given)
        result, ticket = answer if handler.answers else (None, answer)
        await self.confirmer.confirmed(ticket)
        return result

    async def transacted(self, client: Client, given: Transact, producer: Producer | None) -> Any:
        """Pushes and settles, all or nothing; the ids of each push."""
        with self.counting(""):
            wanted = calls.queues_of(given)
        finishes = any(action is Action.SETTLE for action, _ in wanted)  # what was begun before the drain
        for action, queue in wanted:
            refused = self.refused(client, action, queue, even_draining=finishes)
            if refused is not None:
                raise refused
        self.flush()
        with self.counting(min((queue for _, queue in wanted), default="")):
            ids, ticket = await asyncio.to_thread(self._transact, given, producer, client)
        await self.confirmer.confirmed(ticket)
        return ids

    def _transact(self, given: Transact, producer: Producer | None, client: Client) -> tuple[Any, Ticket]:
        """In a thread: the batches of a large transaction take long to check."""
        return transact(self.shard, calls.operations(given.operations), producer, client.identity)

    async def _sink_committed(self, client: Client, given: CommitSink) -> SinkState:
        refused = self.refused(client, Action.PUSH, given.queue)
        if refused is not None:
            raise refused
        self.flush()
        wanted = calls.sink_commit(given)
        with self.counting(given.queue):
            state, ticket = await asyncio.to_thread(self.session.commit_sink, wanted, client.identity)
        await self.confirmer.confirmed(ticket)
        return state

    def _info(self) -> ServerInfo:
        return ServerInfo(VERSION, self.shard.durability, len(self.shard.core.by_name))

    # the end

    async def drain(self) -> None:
        """Take no more work; answer those who wait, end streams, and see what was begun made durable."""
        self.is_draining = True
        for pending in list(self.waiting):
            pending.finish()
        for stream in list(self.streams):
            stream.end()
        for wait in list(self.waits):
            wait.end()
        self.flush()
        await self.confirmer.confirmed(self.shard.journal.sequence)

    def close(self) -> None:
        """End the thread that confirms. Call it after `drain`, before the session is closed."""
        self.events.close()
        self.confirmer.close()

    # helpers

    def in_thread(self, work: Callable[[], Any], answered: Told) -> None:
        """Run something that may read files; `answered(result or PenstockError)` on the loop."""
        future = self.loop.run_in_executor(None, answer_of, work)
        future.add_done_callback(lambda done: done.cancelled() or answered(done.result()))

    def refused(
        self, client: Client, action: Action, queue: str, *, even_draining: bool = False
    ) -> PenstockError | None:
        """Why this may not be done, or None."""
        try:
            self.authorise(client.principal, action, queue)
        except PenstockError as error:
            return self.count(queue, error)
        return None if even_draining else self.draining()

    def draining(self) -> PenstockError | None:
        """What new work is answered with while the broker drains."""
        return stopping() if self.is_draining else None

    def flush(self) -> None:
        """Push what is gathered: what comes next stands behind it."""
        self._folder.flush()

    @property
    def is_holding(self) -> bool:
        """Whether pushes must wait for the sealer."""
        return bool(self._held) or not self.shard.throttle.is_set()

    def hold(self, push: Callable[[], None]) -> None:
        """Too many journal files wait for the sealer: pushes wait too, in order, until it has caught up."""
        self._held.append(push)
        if len(self._held) == 1:
            self.in_thread(self.shard.throttle.wait, self._unhold)

    def _unhold(self, _: Any) -> None:
        held, self._held = self._held, deque()
        for push in held:
            push()

    def timed(self, operation: Any, started: int, told: Told, answer: Any) -> None:
        """Tell, and note how long it took."""
        self.meter.took(operation, (self.clock.monotonic() - started) / 1e6)
        told(answer)

    @contextmanager
    def counting(self, queue: str) -> Iterator[None]:
        """Note a refusal that is raised within."""
        try:
            yield
        except PenstockError as error:
            self.count(queue, error)
            raise

    def count(self, queue: str, error: PenstockError) -> PenstockError:
        """Note that a request was refused."""
        self.meter.refused(queue, error.code)
        return error
