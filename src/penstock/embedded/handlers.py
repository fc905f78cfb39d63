"""What executes each operation: one function for each entry of the table, on the session of a shard in this process.

A handler may block and read files; it returns the result and a ticket. Whoever calls it waits until the ticket is
durable before the result leaves. An embedded session and a broker execute the same handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from penstock import operations as ops
from penstock.access.encryption import KeyRing, read_key_file
from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.entries import Entry, ProducerSet
from penstock.delivery.producers import decide_producer, named_id
from penstock.embedded import access_handlers  # noqa: F401 - those of its operations
from penstock.embedded.handler_table import HANDLERS, Reply, handles
from penstock.errors import InvalidField, QueueExists, shown
from penstock.model import DLQ_SUFFIX, OWNER_SEPARATOR, Freed, owned, queue_options, to_micros
from penstock.model_audit import AuditFilter
from penstock.replies import QueueKeys, ServerInfo
from penstock.requests import SinkCommit
from penstock.shard import browse, dead_letters, members, sink_commit
from penstock.shard.tasks import finish, schedules
from penstock.shard.tasks import operations as task_operations
from penstock.storage.staging import stored_name
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.embedded.session import Session

__all__ = ["HANDLERS"]


def _change(session: Session, decide: Callable[[int], Iterable[Entry]]) -> Reply:
    """Entries decided and applied under the lock; no result."""
    return None, session.shard.change(decide)


# queues


@handles(ops.Queues)
def _queues(session: Session, operation: ops.Queues, client: str) -> Reply:
    return session.shard.look(lambda now: sorted(session.shard.core.by_name))


@handles(ops.CreateQueue)
def _create_queue(session: Session, operation: ops.CreateQueue, client: str) -> Reply:
    core, name = session.shard.core, operation.queue
    options = queue_options(operation.options)
    _check_encryption(session, operation.options)

    def decide(now: int) -> list[Any]:
        existing = core.by_name.get(name)
        if existing is None:
            entries = admin.decide_create_queue(core, name, options, now)
            if options.encryption:
                entries += schedules.decide_encrypt_schedules(session.shard, name, now)
            return entries
        if operation.exist_ok and existing.options == options:
            return []
        raise QueueExists(f"queue {name!r} exists already" + (" with other options" if operation.exist_ok else ""))

    reply = _change(session, decide)
    _make_data_key(session, name)
    return reply


@handles(ops.UpdateQueue)
def _update_queue(session: Session, operation: ops.UpdateQueue, client: str) -> Reply:
    core = session.shard.core
    _check_encryption(session, operation.changes)

    def decide(now: int) -> list[Any]:
        queue = admin.queue_named(core, operation.queue)
        entries = admin.decide_update_queue(queue, operation.changes, now)
        if operation.changes.get("encryption") and not queue.options.encryption:
            entries += admin.decide_encrypt_letters(core, queue, now)
            entries += schedules.decide_encrypt_schedules(session.shard, queue.name, now)
        return entries

    reply = _change(session, decide)
    _make_data_key(session, operation.queue)
    return reply


def _make_data_key(session: Session, name: str) -> None:
    """An encrypted queue has its key before its first message, for those who stage messages for it."""
    number = session.shard.number_of(name)
    if session.key_ring is not None and number in session.shard.core.encrypted:
        session.key_ring.current(number)


def _check_encryption(session: Session, options: Mapping[str, Any]) -> None:
    """Refuse an encrypted queue where nothing could be encrypted."""
    if options.get("encryption") and session.shard.frame_seals is None:
        raise _no_master_key()


def _no_master_key() -> InvalidField:
    hint = "`penstock encryption init FILE` makes a master key; set master_key to its path"
    return InvalidField("encryption: there is no master key", hint=hint)


@handles(ops.GetDataKeys)
def _get_data_keys(session: Session, operation: ops.GetDataKeys, client: str) -> Reply:
    ring, numbers = _encrypted(session, operation.queue)
    return QueueKeys(ring.keys_of(numbers)), 0


@handles(ops.ListDataKeys)
def _list_data_keys(session: Session, operation: ops.ListDataKeys, client: str) -> Reply:
    names, ticket = session.shard.look(lambda now: {id: queue.name for id, queue in session.shard.core.queues.items()})
    return [] if session.key_ring is None else session.key_ring.describe(names), ticket


@handles(ops.RotateDataKey)
def _rotate_data_key(session: Session, operation: ops.RotateDataKey, client: str) -> Reply:
    ring, numbers = _encrypted(session, operation.queue)
    session.audit.record_first()
    new = [ring.rotate(number) for number in numbers]
    return new[0], 0


@handles(ops.EraseDataKeys)
def _erase_data_keys(session: Session, operation: ops.EraseDataKeys, client: str) -> Reply:
    ring, numbers = _encrypted(session, operation.queue)
    before = None if operation.before is None else to_micros(operation.before, "before")
    session.audit.record_first()
    erased = sum(ring.erase(number, before) for number in numbers)
    if session.shard.store is not None:
        session.shard.store.forget_loaded()
    return erased, 0


@handles(ops.RewrapDataKeys)
def _rewrap_data_keys(session: Session, operation: ops.RewrapDataKeys, client: str) -> Reply:
    if session.key_ring is None:
        raise _no_master_key()
    master_key = read_key_file(operation.master_key)
    session.audit.record_first()
    return session.key_ring.rewrap(master_key), 0


def _encrypted(session: Session, name: str) -> tuple[KeyRing, list[int]]:
    """The key ring, and the numbers of an encrypted queue and of its dead letters."""
    core = session.shard.core

    def numbers(now: int) -> list[int]:
        queue = admin.queue_named(core, name)
        dlq = core.by_name.get(name + DLQ_SUFFIX)
        return [each.id for each in (queue, dlq) if each is not None and each.options.encryption]

    found, _ = session.shard.look(numbers)
    if session.key_ring is None or not found:
        raise InvalidField(f"queue: {name!r} is not encrypted", hint="set its option encryption")
    return session.key_ring, found


@handles(ops.DeleteQueue)
def _delete_queue(session: Session, operation: ops.DeleteQueue, client: str) -> Reply:
    core = session.shard.core
    return _change(session, lambda now: admin.decide_delete_queue(core, admin.queue_named(core, operation.queue)))


@handles(ops.GetOptions)
def _get_options(session: Session, operation: ops.GetOptions, client: str) -> Reply:
    return session.shard.look(lambda now: admin.queue_named(session.shard.core, operation.queue).options)


@handles(ops.Stats)
def _stats(session: Session, operation: ops.Stats, client: str) -> Reply:
    return browse.stats(session.shard, operation.queue)


@handles(ops.Leases)
def _leases(session: Session, operation: ops.Leases, client: str) -> Reply:
    return browse.leases(session.shard, operation.queue, operation.group, operation.limit)


@handles(ops.Pause)
def _pause(session: Session, operation: ops.Pause, client: str) -> Reply:
    return _set_paused(session, operation.queue, True)


@handles(ops.Resume)
def _resume(session: Session, operation: ops.Resume, client: str) -> Reply:
    return _set_paused(session, operation.queue, False)


def _set_paused(session: Session, queue: str, paused: bool) -> Reply:
    core = session.shard.core
    return _change(session, lambda now: admin.decide_pause(admin.queue_named(core, queue), paused, now))


@handles(ops.Purge)
def _purge(session: Session, operation: ops.Purge, client: str) -> Reply:
    core = session.shard.core
    return _change(session, lambda now: admin.decide_purge(admin.queue_named(core, operation.queue), now))


# messages


@handles(ops.Read)
def _read(session: Session, operation: ops.Read, client: str) -> Reply:
    since = None if operation.timestamp is None else to_micros(operation.timestamp, "timestamp")
    return browse.read(session.shard, operation.queue, operation.partition, operation.offset, since, operation.limit)


@handles(ops.Peek)
def _peek(session: Session, operation: ops.Peek, client: str) -> Reply:
    return browse.peek(session.shard, operation.queue, operation.limit)


@handles(ops.Delayed)
def _delayed(session: Session, operation: ops.Delayed, client: str) -> Reply:
    return browse.delayed(session.shard, operation.queue, operation.limit)


@handles(ops.Cancel)
def _cancel(session: Session, operation: ops.Cancel, client: str) -> Reply:
    return _change(session, lambda now: admin.decide_cancel(session.shard.core, operation.id, now))


@handles(ops.Why)
def _why(session: Session, operation: ops.Why, client: str) -> Reply:
    return browse.why_waiting(session.shard, operation.id)


# groups


@handles(ops.Groups)
def _groups(session: Session, operation: ops.Groups, client: str) -> Reply:
    return browse.groups(session.shard, operation.queue)


@handles(ops.CreateGroup)
def _create_group(session: Session, operation: ops.CreateGroup, client: str) -> Reply:
    core = session.shard.core

    def decide(now: int) -> list[Any]:
        return browse.decide_create_group(
            core, operation.queue, operation.group, operation.start, now, observes=operation.observes
        )

    return _change(session, decide)


@handles(ops.DeleteGroup)
def _delete_group(session: Session, operation: ops.DeleteGroup, client: str) -> Reply:
    def decide(now: int) -> list[Any]:
        queue = admin.queue_named(session.shard.core, operation.queue)
        return admin.decide_delete_group(queue, admin.group_named(queue, operation.group))

    return _change(session, decide)


@handles(ops.Seek)
def _seek(session: Session, operation: ops.Seek, client: str) -> Reply:
    core = session.shard.core

    def decide(now: int) -> list[Any]:
        return browse.decide_seek(core, operation.queue, operation.group, operation.to, operation.partition, now)

    return _change(session, decide)


@handles(ops.Members)
def _members(session: Session, operation: ops.Members, client: str) -> Reply:
    return members.members(session.shard, operation.queue, operation.group)


@handles(ops.Join, of_owner=True)
def _join(session: Session, operation: ops.Join, client: str, owner: str) -> Reply:
    return members.join(
        session.shard,
        operation.queue,
        operation.group,
        owned(owner, operation.member),
        operation.session_seconds,
        operation.start,
    )


@handles(ops.Heartbeat, of_owner=True)
def _heartbeat(session: Session, operation: ops.Heartbeat, client: str, owner: str) -> Reply:
    return members.heartbeat(
        session.shard,
        operation.queue,
        operation.group,
        owned(owner, operation.member),
        operation.generation,
        operation.held,
    )


@handles(ops.Leave, of_owner=True)
def _leave(session: Session, operation: ops.Leave, client: str, owner: str) -> Reply:
    member = owned(owner, operation.member)
    return None, members.leave(session.shard, operation.queue, operation.group, member, operation.generation)


# dead letters


@handles(ops.DeadLetters)
def _dead_letters(session: Session, operation: ops.DeadLetters, client: str) -> Reply:
    return dead_letters.find(session.shard, operation.queue, operation.filter)


@handles(ops.Redrive)
def _redrive(session: Session, operation: ops.Redrive, client: str) -> Reply:
    return dead_letters.redrive(session.shard, operation.queue, operation.filter, operation.rate)


@handles(ops.ReplaceLetters)
def _replace_letters(session: Session, operation: ops.ReplaceLetters, client: str) -> Reply:
    batch = Batch.parse(operation.batch, validate=True)
    return None, dead_letters.replace(session.shard, operation.queue, operation.ids, batch)


@handles(ops.PurgeDeadLetters)
def _purge_dead_letters(session: Session, operation: ops.PurgeDeadLetters, client: str) -> Reply:
    return None, dead_letters.purge(session.shard, operation.queue)


# the broker, its files, sinks and producers


@handles(ops.Info)
def _info(session: Session, operation: ops.Info, client: str) -> Reply:
    shard = session.shard
    return ServerInfo(VERSION, shard.durability, shard.queue_count), 0


@handles(ops.Seal)
def _seal(session: Session, operation: ops.Seal, client: str) -> Reply:
    if session.keeper is None:
        return 0, 0
    session.shard.journal.rotate()
    return session.keeper.seal(), 0


@handles(ops.Compact)
def _compact(session: Session, operation: ops.Compact, client: str) -> Reply:
    session.shard.require_open()
    return Freed() if session.keeper is None else session.keeper.compact(), 0


@handles(ops.ListAudit)
def _list_audit(session: Session, operation: ops.ListAudit, client: str) -> Reply:
    since = None if operation.since is None else to_micros(operation.since, "since")
    filter = AuditFilter(operation.who, operation.what, operation.outcome, since)
    return session.audit.find(filter, operation.limit), 0


@handles(ops.VerifyAudit)
def _verify_audit(session: Session, operation: ops.VerifyAudit, client: str) -> Reply:
    return session.audit.verify(), 0


@handles(ops.InitProducer, of_owner=True)
def _init_producer(session: Session, operation: ops.InitProducer, client: str, owner: str) -> Reply:
    begun: list[ProducerSet] = []

    def decide(now: int) -> list[ProducerSet]:
        begun[:] = [decide_producer(session.shard.core.producers, operation.producer, now, owner)]
        return begun

    ticket = session.shard.change(decide)
    return (named_id(owner, operation.producer), begun[0].epoch), ticket


@handles(ops.History)
def _history(session: Session, operation: ops.History, client: str) -> Reply:
    return session.files.history(), 0


@handles(ops.ListFiles)
def _list_files(session: Session, operation: ops.ListFiles, client: str) -> Reply:
    return session.files.list(operation.directory), 0


@handles(ops.Fetch)
def _fetch(session: Session, operation: ops.Fetch, client: str) -> Reply:
    return session.files.fetch(operation.name, operation.position, operation.length), 0


@handles(ops.Pin)
def _pin(session: Session, operation: ops.Pin, client: str) -> Reply:
    session.files.pin(operation.name, operation.files)
    return None, 0


@handles(ops.Unpin)
def _unpin(session: Session, operation: ops.Unpin, client: str) -> Reply:
    session.files.unpin(operation.name)
    return None, 0


@handles(ops.Stage, of_owner=True)
def _stage(session: Session, operation: ops.Stage, client: str, owner: str) -> Reply:
    shard = session.shard
    shard.look(lambda now: admin.queue_named(shard.core, operation.queue))
    shard.check_space()
    name = stored_name(owner, operation.queue, operation.name)
    session.staging.reserve(name, operation.position, len(operation.data))
    namespace = session.access.namespace_of(operation.queue)
    if namespace is not None:
        where = name, operation.position, len(operation.data)
        session.staged_quotas.reserve(namespace.name, namespace.quotas.staged_bytes, *where)
    data = sink_commit.stored_bytes(shard, operation.queue, name, operation.position, operation.data)
    session.staging.write(name, operation.position, data)
    return None, 0


@handles(ops.DiscardStaged, of_owner=True)
def _discard_staged(session: Session, operation: ops.DiscardStaged, client: str, owner: str) -> Reply:
    names = [stored_name(owner, operation.queue, name) for name in operation.names]
    sink_commit.discard_staged(session.shard, session.staging, names)
    return None, 0


@handles(ops.CommitSink, of_owner=True)
def _commit_sink(session: Session, operation: ops.CommitSink, client: str, owner: str) -> Reply:
    staged = tuple(stored_name(owner, operation.queue, name) for name in operation.staged)
    commit = SinkCommit(**{**structs.asdict(operation), "sink": _owned_sink(owner, operation.sink), "staged": staged})
    return sink_commit.commit_sink(session.shard, session.staging, commit, client)


@handles(ops.GetSinkState, of_owner=True)
def _get_sink_state(session: Session, operation: ops.GetSinkState, client: str, owner: str) -> Reply:
    return sink_commit.sink_state(session.shard, operation.queue, _owned_sink(owner, operation.sink))


def _owned_sink(owner: str, sink: str) -> str:
    if owner and OWNER_SEPARATOR in sink:
        raise InvalidField(f"sink: {shown(sink)} contains a null character")
    return owned(owner, sink) if sink else ""


# tasks


@handles(ops.SubmitTasks)
def _submit_tasks(session: Session, operation: ops.SubmitTasks, client: str) -> Reply:
    return session.tasks.submit(operation.tasks, client)


@handles(ops.FinishTasks)
def _finish_tasks(session: Session, operation: ops.FinishTasks, client: str) -> Reply:
    return finish.finish_tasks(session.shard, operation.finishes)


@handles(ops.NoteProgress)
def _note_progress(session: Session, operation: ops.NoteProgress, client: str) -> Reply:
    return None, finish.note_progress(session.shard, operation.receipt, operation.task_id, operation.progress)


@handles(ops.FindTask)
def _find_task(session: Session, operation: ops.FindTask, client: str) -> Reply:
    return session.tasks.task(operation.task_id), 0


@handles(ops.ListTasks)
def _list_tasks(session: Session, operation: ops.ListTasks, client: str) -> Reply:
    return session.tasks.caught_up().page(operation.filter), 0


@handles(ops.WaitTask)
def _wait_task(session: Session, operation: ops.WaitTask, client: str) -> Reply:
    return session.tasks.wait(operation.task_id, operation.wait_seconds)


@handles(ops.CancelTask)
def _cancel_task(session: Session, operation: ops.CancelTask, client: str) -> Reply:
    return session.tasks.cancel(operation.task_id), 0


@handles(ops.RetryTask)
def _retry_task(session: Session, operation: ops.RetryTask, client: str) -> Reply:
    return session.tasks.retry(operation.task_id), 0


@handles(ops.BeginOperation)
def _begin_operation(session: Session, operation: ops.BeginOperation, client: str) -> Reply:
    return session.tasks.begin_operation(operation.action, operation.filter, operation.operation_id)


@handles(ops.FindOperation)
def _find_operation(session: Session, operation: ops.FindOperation, client: str) -> Reply:
    return task_operations.operation(session.shard, operation.operation_id)


@handles(ops.ListOperations)
def _list_operations(session: Session, operation: ops.ListOperations, client: str) -> Reply:
    return task_operations.operations(session.shard)


@handles(ops.StopOperation)
def _stop_operation(session: Session, operation: ops.StopOperation, client: str) -> Reply:
    return task_operations.stop_operation(session.shard, operation.operation_id)


@handles(ops.HeartbeatWorker, of_owner=True)
def _heartbeat_worker(session: Session, operation: ops.HeartbeatWorker, client: str, owner: str) -> Reply:
    return session.tasks.heartbeat(operation.info, owner), 0


@handles(ops.AwaitNews, of_owner=True)
def _await_news(session: Session, operation: ops.AwaitNews, client: str, owner: str) -> Reply:
    return session.tasks.await_news(owned(owner, operation.worker_id), operation.wait_seconds), 0


@handles(ops.ForgetWorker, of_owner=True)
def _forget_worker(session: Session, operation: ops.ForgetWorker, client: str, owner: str) -> Reply:
    return None, session.tasks.forget(owned(owner, operation.worker_id))


@handles(ops.Workers)
def _workers(session: Session, operation: ops.Workers, client: str) -> Reply:
    return session.tasks.workers(), 0


@handles(ops.SetSchedule)
def _set_schedule(session: Session, operation: ops.SetSchedule, client: str) -> Reply:
    return schedules.set_schedule(session.shard, operation.schedule)


@handles(ops.DeleteSchedule)
def _delete_schedule(session: Session, operation: ops.DeleteSchedule, client: str) -> Reply:
    return None, schedules.delete_schedule(session.shard, operation.name)


@handles(ops.Schedules)
def _schedules(session: Session, operation: ops.Schedules, client: str) -> Reply:
    return schedules.schedules(session.shard)


MISSING: Final = ops.TABLE.values() - HANDLERS.keys()
assert not MISSING, f"operations without a handler: {MISSING}"
