"""The broker: every request, of whatever protocol, comes by here.

May they? Then the shard, on the event loop's own thread, and the answer once it is durable. The callback forms cost
least: `on_reply` is called exactly once, on the loop, with the result or with a `PenstockError` as a value; they never
raise. Nothing here blocks: what may read a file runs in a thread, and pushes that must wait for the sealer are held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from penstock import limits
from penstock.access import views
from penstock.access.authenticator import Authenticator
from penstock.access.grants import BROKER_ACTIONS
from penstock.access.sign_in import SignIn
from penstock.batch import Batch
from penstock.broker.access import Authorise, Client, Principal
from penstock.broker.audit import Audit
from penstock.broker.authorisation import Authorisation
from penstock.broker.callbacks import OnReply, answer_of, raised, resolve
from penstock.broker.events import ALL_TASKS, QUEUES, Events, Listener, TasksWanted, Topic
from penstock.broker.history_queries import HistoryQueries
from penstock.broker.leases import Pending, PendingQueues
from penstock.broker.logins import Logins
from penstock.broker.push_coalescing import Content, Kind, Producer, PushCoalescer
from penstock.broker.reply_size import messages_that_fit
from penstock.broker.seats import AddressBudget, Seats
from penstock.broker.settle_each import SettleEach
from penstock.broker.streams import Stream, StreamRequest
from penstock.broker.tasks import SPECIAL, Tasks, Wait, stopping
from penstock.delivery.producers import check_producer, stored_id
from penstock.embedded.session import Session
from penstock.errors import BadQuery, NotAuthorised, PenstockError
from penstock.journal.commit import Confirmer
from penstock.model import ContentType, Durability, Message, MessageId, Outcome, Receipt, owned
from penstock.operations import Action, Me, Operation
from penstock.operations.base import SOME_QUEUE
from penstock.replies import LeaseReplies, LeaseReply, PushReply, leases_of
from penstock.requests import RELEASE, LeaseRequest, OwnOperation, PartitionChoice, PushOperation, QueueChoice, Settling
from penstock.requests import Operation as Step
from penstock.telemetry.logs import TRACE
from penstock.telemetry.meter import Meter

R = TypeVar("R")
Ids = list[list[MessageId]]
logger: Final = logging.getLogger("penstock.broker")
ADMIN_HINT: Final = "use the admin_port of this broker"
_MAY_READ_FILES: Final = (Outcome.RETRIED, Outcome.REJECTED)  # a dead letter is a copy, made when it is settled


class Broker:
    """Executes requests. Create it on the running loop; `close` ends it, the session stays open."""

    def __init__(
        self,
        session: Session,
        *,
        authorise: Authorise = Principal.require,
        authenticator: Authenticator | None = None,
        sign_in: SignIn | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.session = session
        self.shard = session.shard
        self.clock = session.shard.clock
        self.meter = meter or Meter()
        session.set_meter(self.meter)
        self.authorise = authorise
        self.is_admin_apart = False  # whether only clients of the admin port may operate and export
        if authenticator is not None:
            authenticator.on_gone = self.give_up
        self.seats = Seats(session.access.connections_max)
        session.connections_of = self.seats.taken
        self.connections = session.connections
        self.loop = session.loop = asyncio.get_running_loop()
        self.connections.loop = self.loop
        self.confirmer = Confirmer(self.shard.commit, self.loop)
        self.waiting: set[Pending] = set()  # leases with nothing to give yet
        self.streams: set[Stream] = set()
        self.waits: set[Wait] = set()  # for tasks, and for news
        self.audit = Audit(self)
        self.authorisation = Authorisation(self)
        self.logins = Logins(self, authenticator, sign_in)
        self.tasks = Tasks(self)
        self.events = Events(session, self.confirmer, self.authorisation.task)
        self.history_queries: HistoryQueries | None = None  # where there are files to query
        self.is_draining = False
        self.elsewhere: Callable[[Client], PenstockError] | None = None  # a spare node: who asks is sent to the owner
        self.notices = session.notices  # what else readyz has to say
        self.unread = AddressBudget(limits.unread_bytes_max)  # bytes of requests that are not whole yet
        self._coalescer = PushCoalescer(
            self.loop, self.shard.push_folded, self._after_fold, self.confirmer.is_syncing, self._stored, self.count
        )
        self.confirmer.on_sync = self._coalescer.flush
        self._held: deque[Callable[[], None]] = deque()  # pushes while the sealer is behind

    # pushing

    def push_one(
        self,
        client: Client,
        queue: str,
        payload: bytes,
        producer: Producer | None,
        on_reply: OnReply,
        content: Content = ContentType.BYTES,
    ) -> None:
        """One message, folded with those that arrive together; `on_reply((partition, offset))`."""
        refused = self.refused(client, Action.PUSH, queue)
        if refused is not None:
            on_reply(refused)
        elif self.is_holding:
            self.hold(partial(self.push_one, client, queue, payload, producer, on_reply, content))
        else:
            if producer is not None and client.owner:
                try:
                    producer = own_producer(client, producer)
                except PenstockError as error:
                    on_reply(self.count(queue, error))
                    return
            kind = (queue, client.identity, client.protocol, content)
            self._coalescer.add(kind, payload, producer, on_reply)

    def push(
        self,
        client: Client,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        producer: Producer | None,
        on_reply: OnReply,
        *,
        skips: bool = False,
    ) -> None:
        """A batch that was checked; `on_reply(PushReply)`. With `skips`, those of its messages that can be stored."""
        refused = self.refused(client, Action.PUSH, queue)
        if refused is not None:
            on_reply(refused)
            return
        if self.is_holding:
            self.hold(partial(self.push, client, queue, batch, partition, durability, producer, on_reply, skips=skips))
            return
        started = self.clock.monotonic()
        self.flush()
        answer = answer_of(
            lambda: self.shard.push(
                queue, batch, partition, durability, own_producer(client, producer), client.identity, skips=skips
            )
        )
        if isinstance(answer, PenstockError):
            on_reply(self.count(queue, answer))
            return
        reply, ticket = answer
        self.meter.pushed(queue, client.protocol, batch.count - len(reply.failures), batch.payload_bytes)
        for code in {failure.code for failure in reply.failures.values()}:
            self.meter.refused(queue, code)
        self.confirmer.after(ticket, partial(self.timed, "push", started, on_reply), reply)

    def _stored(self, kind: Kind, messages: int, nbytes: int) -> None:
        self.meter.pushed(kind[0], kind[2], messages, nbytes)

    def _after_fold(self, ticket: int, on_reply: OnReply, answer: Any) -> None:
        self.confirmer.after(ticket, partial(self.timed, "push", self.clock.monotonic(), on_reply), answer)

    # leasing

    def lease(
        self,
        client: Client,
        queue: str,
        group: str,
        request: LeaseRequest,
        wait_seconds: float,
        on_reply: OnReply,
    ) -> Pending:
        """Lease messages; `on_reply(LeaseReply)`, its rows loaded. Cancel it when the client goes away."""
        self.flush()
        member = owned(client.owner, request.member) if request.member else ""
        named = msgspec.structs.replace(request, client=client.identity, owner=client.owner, member=member)
        pending = Pending(self, client, queue, group, named, 0.0 if self.is_draining else wait_seconds, on_reply)
        return _begun(pending, self.refused(client, Action.CONSUME, queue), on_reply)

    def lease_queues(
        self,
        client: Client,
        choice: QueueChoice,
        group: str,
        request: LeaseRequest,
        wait_seconds: float,
        on_reply: OnReply,
    ) -> Pending:
        """`lease` over several queues; `on_reply(LeaseReplies)`. Access is checked for each queue."""
        self.flush()
        named = msgspec.structs.replace(request, client=client.identity, owner=client.owner)
        wait = 0.0 if self.is_draining else wait_seconds
        pending = PendingQueues(self, client, choice, group, named, wait, on_reply)
        refused = self.draining()
        return _begun(pending, None if refused is None else self.count("", refused), on_reply)

    def stream(
        self,
        client: Client,
        request: StreamRequest,
        deliver: Callable[[LeaseReply], None],
        ended: Callable[[PenstockError | None], None],
    ) -> Stream:
        """Deliveries as they come, within the credit that is given; raises when the request is wrong."""
        names = (request.queue,) if request.queues is None else request.queues.names
        for name in [name for name in names if not name.endswith("*")] or (SOME_QUEUE,):
            raised(self.refused(client, Action.CONSUME, name))
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
        filter: TasksWanted = ALL_TASKS,
    ) -> Listener:
        """Live events of some queues, or of all that may be seen; raises when they may not be heard."""
        for topic in sorted(topics):
            action = Action.READ if topic == "tasks" else Action.MONITOR
            for queue in (SOME_QUEUE,) if queues is None else queues:
                raised(self.refused(client, action, queue))
        return self.events.listen(queues, interval_seconds, wake, topics, filter, client.principal)

    def measure_lease(self, reply: LeaseReply, started: int) -> None:
        """Count what was handed out."""
        now = self.clock.now()
        for piece in reply.pieces:
            self.meter.leased(reply.queue, reply.group, len(piece.offsets), max(0, now - piece.pushed(0)) / 1e6)
        self.meter.took("lease", (self.clock.monotonic() - started) / 1e6)

    # settling

    def settle(self, client: Client, receipts: Sequence[Receipt], how: Settling, on_reply: OnReply) -> None:
        """End deliveries, all of them or none; `on_reply(None)`."""
        self._settle(client, {receipt.queue for receipt in receipts}, how, on_reply, self.session.settle, receipts)

    def settle_lease(self, client: Client, nonce: int, how: Settling, on_reply: OnReply) -> None:
        """End all deliveries that a lease still holds; `on_reply(None)`."""
        self._settle(client, self._queues_of(nonce), how, on_reply, self.session.settle_lease, nonce)

    def settle_leases(self, client: Client, nonces: Sequence[int], how: Settling, on_reply: OnReply) -> None:
        """End all deliveries that some leases still hold; `on_reply(None)`, or the first error when all are done."""
        queues = set().union(*map(self._queues_of, nonces))
        failures: list[PenstockError] = []

        def settle(nonces: Sequence[int], how: Settling) -> int:
            failure, ticket = self.session.settle_leases(nonces, how)
            failures.extend([failure] if failure is not None else [])
            return ticket

        def done(answer: Any) -> None:
            on_reply(self.count("", failures[0]) if answer is None and failures else answer)

        self._settle(client, queues, how, done, settle, nonces)

    def _settle(
        self, client: Client, queues: set[str], how: Settling, on_reply: OnReply, settle: Callable[..., int], what: Any
    ) -> None:
        if self.refuse(client, Action.CONSUME, queues, on_reply, even_draining=True):
            return
        started = self.clock.monotonic()

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                on_reply(self.count(min(queues, default=""), answer))
            else:
                self.confirmer.after(answer, partial(self.timed, "settle", started, on_reply), None)

        if how.outcome in _MAY_READ_FILES and self.shard.store is not None:
            self.in_thread(partial(settle, what, how), answered)
        else:
            answered(answer_of(partial(settle, what, how)))

    def settle_each(self, client: Client, receipts: Sequence[Receipt], how: Settling, on_reply: OnReply) -> None:
        """End deliveries, each by itself when not all of them can be; `on_reply([None or PenstockError, …])`."""
        SettleEach(self, client, receipts, how, on_reply).start()

    def extend(self, client: Client, nonce: int, seconds: float, on_reply: OnReply) -> None:
        """Hold a lease longer; `on_reply(when it expires now)`."""
        if self.refuse(client, Action.CONSUME, self._queues_of(nonce), on_reply, even_draining=True):
            return
        answer = answer_of(partial(self.session.extend, nonce, seconds))
        on_reply(self.count("", answer) if isinstance(answer, PenstockError) else answer)

    def _queues_of(self, nonce: int) -> set[str]:
        queue = self.shard.queue_of_lease(nonce)
        return set() if queue is None else {queue}

    # everything else

    async def execute(self, client: Client, operation: Operation[R]) -> R:
        """Execute an operation: access, then the session, and the reply once it is durable."""
        if logger.isEnabledFor(TRACE):
            about = {"operation": operation.spec.name, "client": client.name, "protocol": client.protocol}
            logger.log(TRACE, "operation", extra=about)
        if isinstance(operation, Me):
            return cast(R, views.principal(client.principal))
        special = SPECIAL.get(type(operation))
        if special is not None:
            result: R = await special(self.tasks, client, operation)
            return result
        self.authorisation.require(client, operation)
        self.flush()
        with self.counting(min(operation.queues(), default="")), self.audit.counting(client, operation):
            caller = self.audit.caller(client)
            reply, ticket = await asyncio.to_thread(self.session.run, operation, client.identity, caller, client.owner)
        await self.confirmer.confirmed(ticket)
        if operation.spec.result != list[Message]:
            return cast(R, await self.authorisation.visible(client, operation, reply))
        # Before it is masked, so that no more is masked than is sent; and after it, since a mask may be longer.
        messages = await self.authorisation.visible(client, operation, messages_that_fit(cast("list[Message]", reply)))
        return cast(R, messages_that_fit(messages))

    async def looked(self, operation: Operation[R]) -> R:
        """The reply to an operation that only looks, for a part of a request whose access was checked."""
        self.flush()
        reply, ticket = await asyncio.to_thread(self.session.run, operation)
        await self.confirmer.confirmed(ticket)
        return reply

    async def transact(self, client: Client, operations: Sequence[Step], producer: Producer | None = None) -> Ids:
        """Pushes and settles, all or nothing; the ids of each push."""
        touched = set(map(_needed, operations))
        operations = [_of_owner(client.owner, step) for step in operations]
        finishes = any(action is Action.CONSUME for action, _ in touched)  # what was begun before the drain
        for action, queue in sorted(touched):
            raised(self.refused(client, action, queue, even_draining=finishes))
        self.flush()
        with self.counting(min((queue for _, queue in touched), default="")):
            numbered = own_producer(client, producer)
            ids, ticket = await asyncio.to_thread(self.session.transact, operations, numbered, client.identity)
        await self.confirmer.confirmed(ticket)
        return ids

    # for coroutines: the callback forms above, awaited; these raise

    async def pushed(
        self,
        client: Client,
        queue: str,
        batch: Batch,
        partition: PartitionChoice = None,
        durability: Durability | None = None,
        producer: Producer | None = None,
        *,
        skips: bool = False,
    ) -> PushReply:
        """`push`, awaited."""
        reply: PushReply = await self._awaited(
            partial(self.push, client, queue, batch, partition, durability, producer, skips=skips)
        )
        return reply

    async def leased(
        self, client: Client, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0
    ) -> LeaseReply:
        """`lease`, awaited; cancelling it gives back what was leased meanwhile."""
        reply: LeaseReply = await self._awaited_lease(
            client, partial(self.lease, client, queue, group, request, wait_seconds)
        )
        return reply

    async def leased_queues(
        self, client: Client, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float = 0.0
    ) -> LeaseReplies:
        """`lease_queues`, awaited; cancelling it gives back what was leased meanwhile."""
        reply: LeaseReplies = await self._awaited_lease(
            client, partial(self.lease_queues, client, choice, group, request, wait_seconds)
        )
        return reply

    async def _awaited_lease(self, client: Client, lease: Callable[[OnReply], Pending]) -> Any:
        future: asyncio.Future[Any] = self.loop.create_future()

        def on_reply(answer: Any) -> None:
            if future.done():  # cancelled, and the caller has not run since
                self._give_back(client, answer)
            else:
                resolve(future, answer)

        pending = lease(on_reply)
        try:
            return raised(await future)
        except asyncio.CancelledError:
            pending.cancel()
            if future.done() and not future.cancelled():  # it came in the same moment
                self._give_back(client, future.result())
            raise

    def _give_back(self, client: Client, answer: Any) -> None:
        for lease in leases_of(answer):
            if lease.count:
                self.settle_lease(client, lease.nonce, RELEASE, lambda on_reply: None)

    async def settled(self, client: Client, receipts: Sequence[Receipt], how: Settling) -> None:
        """`settle`, awaited."""
        await self._awaited(partial(self.settle, client, receipts, how))

    async def settled_each(
        self, client: Client, receipts: Sequence[Receipt], how: Settling
    ) -> list[PenstockError | None]:
        """`settle_each`, awaited."""
        answers: list[PenstockError | None] = await self._awaited(partial(self.settle_each, client, receipts, how))
        return answers

    async def settled_lease(self, client: Client, nonce: int, how: Settling) -> None:
        """`settle_lease`, awaited."""
        await self._awaited(partial(self.settle_lease, client, nonce, how))

    async def extended(self, client: Client, nonce: int, seconds: float) -> int:
        """`extend`, awaited."""
        expires_at: int = await self._awaited(partial(self.extend, client, nonce, seconds))
        return expires_at

    async def _awaited(self, operation: Callable[[OnReply], None]) -> Any:
        future: asyncio.Future[Any] = self.loop.create_future()
        operation(partial(resolve, future))
        return raised(await future)

    def give_up(self, owner: str) -> None:
        """A principal has no credential any more: what it holds is released, its members leave, its workers go."""
        self.in_thread(partial(self.session.tasks.give_up, owner), _log_failure)

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
        await self.audit.finish()
        await self.confirmer.confirmed(self.shard.journal.sequence)

    def close(self) -> None:
        """End what runs in the background. Call it after `drain`, before the session is closed."""
        self.events.close()
        self.confirmer.close()

    # helpers

    def in_thread(self, work: Callable[[], Any], answered: OnReply) -> None:
        """Run something that may read files; `answered(result or PenstockError)` on the loop."""
        future = self.loop.run_in_executor(None, answer_of, work)
        future.add_done_callback(lambda done: done.cancelled() or answered(done.result()))

    def refuse(
        self, client: Client, action: Action, queues: Iterable[str], on_reply: OnReply, *, even_draining: bool = False
    ) -> bool:
        """Reply with an error if somebody may not do this to one of the queues; whether it was so."""
        for queue in queues:
            refused = self.refused(client, action, queue, even_draining=even_draining)
            if refused is not None:
                on_reply(refused)
                return True
        return False

    def refused(
        self, client: Client, action: Action, queue: str, *, even_draining: bool = False
    ) -> PenstockError | None:
        """Why this may not be done, or None."""
        try:
            self.require(client, action, queue)
        except PenstockError as error:
            return self.count(queue, error)
        if self.elsewhere is not None:
            return self.elsewhere(client)
        return None if even_draining else self.draining()

    def require(self, client: Client, action: Action, queue: str) -> None:
        """Raise why this may not be done, and note it in the audit log."""
        try:
            if self.is_admin_apart and action in BROKER_ACTIONS and not client.is_operator:
                raise NotAuthorised(f"{action}: not available on this port", hint=ADMIN_HINT)
            self.authorise(client.principal, action, queue)
        except PenstockError as error:
            self.audit.denied(client, action, queue, error)
            raise

    def require_history(self) -> HistoryQueries:
        """What answers queries of the history."""
        if self.history_queries is None:
            hint = "start it with --data DIR"
            raise BadQuery("this broker keeps its data in memory, so there is no history to query", hint=hint)
        return self.history_queries

    def draining(self) -> PenstockError | None:
        """What new work is answered with while the broker drains."""
        return stopping() if self.is_draining else None

    def flush(self) -> None:
        """Push what is gathered: what comes next stands behind it."""
        self._coalescer.flush()

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

    def timed(self, operation: Any, started: int, on_reply: OnReply, answer: Any) -> None:
        """Send the reply, and record how long it took."""
        self.meter.took(operation, (self.clock.monotonic() - started) / 1e6)
        on_reply(answer)

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
        error.is_counted = True
        return error

    def count_rest(self, error: PenstockError, queue: str = "") -> None:
        """Note a refusal that is about to be sent, unless it was: of a request that could not be read, say."""
        if not error.is_counted:
            self.meter.refused(queue, error.code)


def _begun(pending: Pending, refused: PenstockError | None, on_reply: OnReply) -> Pending:
    if refused is None:
        pending.start()
    else:
        pending.cancel()
        on_reply(refused)
    return pending


def _of_owner(owner: str, step: Step) -> Step:
    return msgspec.structs.replace(step, member=owned(owner, step.member)) if isinstance(step, OwnOperation) else step


def _needed(step: Step) -> tuple[Action, str]:
    """What a part of a transaction needs."""
    if isinstance(step, PushOperation):
        return Action.PUSH, step.queue
    return Action.CONSUME, step.queue if isinstance(step, OwnOperation) else step.receipt.queue


def own_producer(client: Client, producer: Producer | None) -> Producer | None:
    """The producer of this client that a push names; raises when it is the producer of somebody else."""
    if producer is None or not client.owner:
        return producer
    id, epoch, sequence = check_producer(producer)
    return stored_id(client.owner, id), epoch, sequence


def _log_failure(answer: Any) -> None:
    if isinstance(answer, PenstockError):
        logger.warning("leases of a revoked principal could not be released: %s", answer)
