"""Handlers of most operations.

`look_handlers` has those of questions about what waits, runs and is connected, `bulk_handlers` those of operations on
many things. `HANDLERS` has all of them once this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from penstock import operations as ops
from penstock.access import views
from penstock.access.encryption import KeyRing, read_key_file
from penstock.access.grants import LOCAL
from penstock.access.passwords import hash_password
from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.admin import PauseChange
from penstock.delivery.compaction import check_compacted
from penstock.delivery.entries import Entry, ProducerSet
from penstock.delivery.producers import decide_producer, named_id
from penstock.embedded import bulk_handlers, look_handlers, metrics  # noqa: F401 - handlers register themselves
from penstock.embedded.handler_table import HANDLERS, Reply, Who, handles
from penstock.errors import InvalidField, QueueExists, QueueNotFound, StateError, shown
from penstock.model import (
    DLQ_SUFFIX,
    OWNER_SEPARATOR,
    Freed,
    owned,
    queue_options,
    to_datetime,
    to_micros,
)
from penstock.model_audit import AuditFilter
from penstock.model_metrics import HistorySeries
from penstock.model_tasks import WorkerRequest
from penstock.replies import QueueKeys, ServerInfo
from penstock.requests import SinkCommit
from penstock.rollups.series import SPAN_SECONDS, ahead, earlier, series
from penstock.shard import browse, dead_letters, members, search, sink_commit
from penstock.shard.bulk.book import decide_encrypt_operations
from penstock.shard.tasks import finish, schedules
from penstock.storage.directory import FORMAT_COMPACTED, FORMAT_PAUSED
from penstock.storage.staging import stored_name
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.embedded.session import Session

__all__ = ["HANDLERS", "Who"]


def _done(function: Callable[..., None], *arguments: Any) -> Reply:
    """Call what is durable when it returns and has no result."""
    function(*arguments)
    return None, 0


def _change(session: Session, decide: Callable[[int], Iterable[Entry]]) -> Reply:
    """Entries decided and applied under the lock; no result."""
    return None, session.shard.change(decide)


# queues


handles(ops.Queues)(lambda session, call, who: session.shard.look(lambda now: sorted(session.shard.core.by_name)))


@handles(ops.CreateQueue)
def _create_queue(session: Session, call: ops.CreateQueue, who: Who) -> Reply:
    core, name = session.shard.core, call.queue
    options = queue_options(call.options)
    _check_encryption(session, call.options)
    _expect_compaction(session, call.options)

    def decide(now: int) -> list[Any]:
        existing = core.by_name.get(name)
        if existing is None:
            entries = admin.decide_create_queue(core, name, options, now)
            if options.encryption:
                entries += schedules.decide_encrypt_schedules(session.shard, name, now)
            return entries
        if call.exist_ok and existing.options == options:
            return []
        raise QueueExists(f"queue {name!r} already exists" + (" with other options" if call.exist_ok else ""))

    reply = _change(session, decide)
    _make_data_key(session, name)
    return reply


@handles(ops.UpdateQueue)
def _update_queue(session: Session, call: ops.UpdateQueue, who: Who) -> Reply:
    core = session.shard.core
    _check_encryption(session, call.changes)
    _expect_compaction(session, call.changes)

    def decide(now: int) -> list[Any]:
        queue = admin.queue_named(core, call.queue)
        entries = admin.decide_update_queue(queue, call.changes, now)
        if call.changes.get("encryption") and not queue.options.encryption:
            entries += admin.decide_encrypt_letters(core, queue, now)
            entries += schedules.decide_encrypt_schedules(session.shard, queue.name, now)
            entries += decide_encrypt_operations(core, queue.id)
        return entries

    reply = _change(session, decide)
    _make_data_key(session, call.queue)
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


def _expect_compaction(session: Session, options: Mapping[str, Any]) -> None:
    if options.get("compaction") == "latest":
        session.need_format(FORMAT_COMPACTED)


def _no_master_key() -> InvalidField:
    hint = "create one with `penstock encryption init FILE` and set master_key to its path"
    return InvalidField("encryption: no master key is set", hint=hint)


@handles(ops.GetDataKeys)
def _get_data_keys(session: Session, call: ops.GetDataKeys, who: Who) -> Reply:
    ring, numbers = _encrypted(session, call.queue)
    return QueueKeys(ring.keys_of(numbers)), 0


@handles(ops.ListDataKeys)
def _list_data_keys(session: Session, call: ops.ListDataKeys, who: Who) -> Reply:
    names, ticket = session.shard.look(lambda now: {id: queue.name for id, queue in session.shard.core.queues.items()})
    return [] if session.key_ring is None else session.key_ring.describe(names), ticket


@handles(ops.RotateDataKey)
def _rotate_data_key(session: Session, call: ops.RotateDataKey, who: Who) -> Reply:
    ring, numbers = _encrypted(session, call.queue)
    session.audit.record_first()
    new = [ring.rotate(number) for number in numbers]
    return new[0], 0


@handles(ops.EraseDataKeys)
def _erase_data_keys(session: Session, call: ops.EraseDataKeys, who: Who) -> Reply:
    ring, numbers = _encrypted(session, call.queue)
    before = None if call.before is None else to_micros(call.before, "before")
    session.audit.record_first()
    erased = sum(ring.erase(number, before) for number in numbers)
    if session.shard.store is not None:
        session.shard.store.forget_loaded()
    return erased, 0


@handles(ops.RewrapDataKeys)
def _rewrap_data_keys(session: Session, call: ops.RewrapDataKeys, who: Who) -> Reply:
    if session.key_ring is None:
        raise _no_master_key()
    master_key = read_key_file(call.master_key)
    session.audit.record_first()
    return session.key_ring.rewrap(master_key), 0


def _encrypted(session: Session, name: str) -> tuple[KeyRing, list[int]]:
    """The key ring, and the numbers of an encrypted queue and of its dead letters."""
    core = session.shard.core

    def numbers(now: int) -> list[int]:
        queue = admin.queue_named(core, name)
        dlq = core.by_name.get(name + DLQ_SUFFIX)
        return [known.id for known in (queue, dlq) if known is not None and known.options.encryption]

    encrypted, _ = session.shard.look(numbers)
    if session.key_ring is None or not encrypted:
        raise InvalidField(f"queue: {name!r} is not encrypted", hint="set the queue option encryption")
    return session.key_ring, encrypted


@handles(ops.DeleteQueue)
def _delete_queue(session: Session, call: ops.DeleteQueue, who: Who) -> Reply:
    return None, session.tasks.bulk.delete_queue(call.queue, lambda ids: session.audit.note(ended_operations=ids))


handles(ops.GetOptions)(
    lambda session, call, who: session.shard.look(lambda now: admin.queue_named(session.shard.core, call.queue).options)
)
handles(ops.Stats)(lambda session, call, who: browse.stats(session.shard, call.queue))
handles(ops.Leases)(lambda session, call, who: browse.leases(session.shard, call.queue, call.group, call.limit))


def _paused(session: Session, call: Any, *, is_pause: bool) -> Reply:
    """Pause or resume a queue, a group, a namespace or the broker."""
    change = PauseChange(call.what, is_pause, getattr(call, "reason", ""))
    queue, group, namespace = (getattr(call, name, None) for name in ("queue", "group", "namespace"))
    if queue is None or group is not None or call.what != "delivery" or change.reason:  # all versions know the rest
        session.need_format(FORMAT_PAUSED)
    return _change(
        session, lambda now: admin.decide_any_pause(session.shard.core, change, queue, group, namespace, now)
    )


for _pausing in (ops.Pause, ops.PauseNamespace, ops.PauseBroker):
    handles(_pausing)(lambda session, call, who: _paused(session, call, is_pause=True))
for _resuming in (ops.Resume, ops.ResumeNamespace, ops.ResumeBroker):
    handles(_resuming)(lambda session, call, who: _paused(session, call, is_pause=False))
handles(ops.Pauses)(
    lambda session, call, who: session.shard.look(lambda now: session.shard.core.pauses.all(session.shard.core))
)


@handles(ops.Purge)
def _purge(session: Session, call: ops.Purge, who: Who) -> Reply:
    core = session.shard.core
    return _change(session, lambda now: admin.decide_purge(admin.queue_named(core, call.queue), now))


# messages


@handles(ops.Read)
def _read(session: Session, call: ops.Read, who: Who) -> Reply:
    since = None if call.timestamp is None else to_micros(call.timestamp, "timestamp")
    return browse.read(session.shard, call.queue, call.partition, call.offset, since, call.limit)


handles(ops.Latest)(lambda session, call, who: session.timelines.latest(call.queue, call.key))
handles(ops.Peek)(lambda session, call, who: browse.peek(session.shard, call.queue, call.limit))
handles(ops.Delayed)(lambda session, call, who: browse.delayed(session.shard, call.queue, call.limit, call.include))
handles(ops.Cancel)(
    lambda session, call, who: _change(session, lambda now: admin.decide_cancel(session.shard.core, call.id, now))
)
handles(ops.GetMessage)(lambda session, call, who: session.timelines.details(call.id))
handles(ops.Events)(lambda session, call, who: session.timelines.events(call.id, call.limit))
handles(ops.FindMessages)(
    lambda session, call, who: session.timelines.search(call.queue, call.key, call.trace, call.limit, call.look_back)
)
handles(ops.SearchMessages)(
    lambda session, call, who: search.Search(session.shard, search.Query(*structs.astuple(call))).page()
)


# groups


handles(ops.Groups)(lambda session, call, who: browse.groups(session.shard, call.queue))


@handles(ops.CreateGroup)
def _create_group(session: Session, call: ops.CreateGroup, who: Who) -> Reply:
    core = session.shard.core

    def decide(now: int) -> list[Any]:
        return browse.decide_create_group(core, call.queue, call.group, call.start, now, observes=call.observes)

    return _change(session, decide)


@handles(ops.DeleteGroup)
def _delete_group(session: Session, call: ops.DeleteGroup, who: Who) -> Reply:
    def decide(now: int) -> list[Any]:
        queue = admin.queue_named(session.shard.core, call.queue)
        return admin.decide_delete_group(queue, admin.group_named(queue, call.group))

    return _change(session, decide)


@handles(ops.Seek)
def _seek(session: Session, call: ops.Seek, who: Who) -> Reply:
    core = session.shard.core

    def decide(now: int) -> list[Any]:
        return browse.decide_seek(core, call.queue, call.group, call.to, call.partition, now)

    return _change(session, decide)


handles(ops.PreviewSeek)(
    lambda session, call, who: session.shard.look(
        lambda now: browse.preview_seek(session.shard.core, call.queue, call.group, call.to, call.partition, now)
    )
)
handles(ops.Members)(lambda session, call, who: members.members(session.shard, call.queue, call.group))


@handles(ops.Join)
def _join(session: Session, call: ops.Join, who: Who) -> Reply:
    member = owned(who.owner, call.member)
    return members.join(session.shard, call.queue, call.group, member, call.session_seconds, call.start)


@handles(ops.Heartbeat)
def _heartbeat(session: Session, call: ops.Heartbeat, who: Who) -> Reply:
    member = owned(who.owner, call.member)
    return members.heartbeat(session.shard, call.queue, call.group, member, call.generation, call.held)


@handles(ops.Leave)
def _leave(session: Session, call: ops.Leave, who: Who) -> Reply:
    member = owned(who.owner, call.member)
    return None, members.leave(session.shard, call.queue, call.group, member, call.generation)


# dead letters


handles(ops.DeadLetters)(lambda session, call, who: dead_letters.find(session.shard, call.queue, call.filter))
handles(ops.Redrive)(lambda session, call, who: dead_letters.redrive(session.shard, call.queue, call.filter, call.rate))


@handles(ops.ReplaceLetters)
def _replace_letters(session: Session, call: ops.ReplaceLetters, who: Who) -> Reply:
    batch = Batch.parse(call.batch, validate=True)
    return None, dead_letters.replace(session.shard, call.queue, call.ids, batch)


handles(ops.PurgeDeadLetters)(lambda session, call, who: (None, dead_letters.purge(session.shard, call.queue)))


# the broker, its files, sinks and producers


@handles(ops.Info)
def _info(session: Session, call: ops.Info, who: Who) -> Reply:
    shard = session.shard
    return ServerInfo(VERSION, shard.durability, shard.queue_count), 0


@handles(ops.Seal)
def _seal(session: Session, call: ops.Seal, who: Who) -> Reply:
    if session.keeper is None:
        return 0, 0
    session.shard.journal.rotate()
    return session.keeper.seal(), 0


@handles(ops.CompactQueue)
def _compact_queue(session: Session, call: ops.CompactQueue, who: Who) -> Reply:
    session.shard.require_open()
    if session.keeper is None:  # in memory nothing is sealed
        _, ticket = session.shard.look(lambda now: check_compacted(session.shard.core, call.queue))
        return Freed(), ticket
    return session.keeper.compact_queue(call.queue), 0


@handles(ops.Sync)
def _sync(session: Session, call: ops.Sync, who: Who) -> Reply:
    session.shard.require_open()
    session.shard.journal.sync()
    return session.shard.journal.durable_sequence, 0


@handles(ops.TakeProfile)
def _take_profile(session: Session, call: ops.TakeProfile, who: Who) -> Reply:
    from penstock.embedded import profiles  # late: few ever ask

    if not session.takes_profiles:
        raise StateError("profiling is disabled on this broker", hint="set profile = true")
    if call.what == "threads":
        return profiles.threads(session.loop), 0
    return (profiles.memory if call.what == "memory" else profiles.profile)(call.seconds), 0


@handles(ops.Compact)
def _compact(session: Session, call: ops.Compact, who: Who) -> Reply:
    session.shard.require_open()
    return Freed() if session.keeper is None else session.keeper.compact(), 0


@handles(ops.GetMetrics)
def _get_metrics(session: Session, call: ops.GetMetrics, who: Who) -> Reply:
    session.shard.require_open()
    return metrics.report(session, call.queue), 0


@handles(ops.GetSeries)
def _get_series(session: Session, call: ops.GetSeries, who: Who) -> Reply:
    session.shard.require_open()
    now = session.shard.clock.now() // 1_000_000
    until = now if call.until is None else to_micros(call.until, "to") // 1_000_000
    since = until - SPAN_SECONDS if call.since is None else to_micros(call.since, "from") // 1_000_000
    if since >= until:
        raise InvalidField(f"from: it is not before {to_datetime(until * 1_000_000).isoformat()}")
    found = series(session.recorder, call.queue, call.metrics, since, until, call.step, now)
    is_known = call.queue is None or call.queue in session.shard.core.by_name
    if not is_known and all(value is None for values in found.series.values() for value in values):
        raise QueueNotFound(f"there is no queue {call.queue!r}, and no history of one")
    return _with_context(session, call, found, now), 0


def _with_context(session: Session, call: ops.GetSeries, found: HistorySeries, now: int) -> HistorySeries:
    """A series with the time before and after it, and with marks, as far as they are wanted."""
    if call.compare is not None:
        previous = earlier(session.recorder, call.queue, call.metrics, found, call.compare, now)
        found = structs.replace(found, previous=previous)
    if call.forecast is not None:
        expected = ahead(session.recorder, call.queue, call.metrics, found, call.forecast, now)
        found = structs.replace(found, forecast=expected)
    if call.marks:
        found = structs.replace(found, marks=metrics.marks(session, call.queue, found.since, found.until))
    return found


@handles(ops.StartBackup)
def _start_backup(session: Session, call: ops.StartBackup, who: Who) -> Reply:
    # Recorded before anything leaves the directory.
    session.audit.record_first()
    return session.backups.start(call.destination, call.keep, call.passphrase, who.owner), 0


handles(ops.GetBackup)(lambda session, call, who: (session.backups.state(), 0))


@handles(ops.ListAudit)
def _list_audit(session: Session, call: ops.ListAudit, who: Who) -> Reply:
    since = None if call.since is None else to_micros(call.since, "since")
    filter = AuditFilter(call.who, call.what, call.outcome, since)
    return session.audit.find(filter, call.limit), 0


handles(ops.VerifyAudit)(lambda session, call, who: (session.audit.verify(), 0))


@handles(ops.InitProducer)
def _init_producer(session: Session, call: ops.InitProducer, who: Who) -> Reply:
    begun: list[ProducerSet] = []

    def decide(now: int) -> list[ProducerSet]:
        begun[:] = [decide_producer(session.shard.core.producers, call.producer, now, who.owner)]
        return begun

    ticket = session.shard.change(decide)
    return (named_id(who.owner, call.producer), begun[0].epoch), ticket


handles(ops.History)(lambda session, call, who: (session.files.history(), 0))
handles(ops.ListFiles)(lambda session, call, who: (session.files.list(call.directory), 0))
handles(ops.Fetch)(lambda session, call, who: (session.files.fetch(call.name, call.position, call.length), 0))
handles(ops.Pin)(lambda session, call, who: _done(session.files.pin, call.name, call.files))
handles(ops.Unpin)(lambda session, call, who: _done(session.files.unpin, call.name))


@handles(ops.Stage)
def _stage(session: Session, call: ops.Stage, who: Who) -> Reply:
    shard = session.shard
    shard.look(lambda now: admin.queue_named(shard.core, call.queue))
    shard.check_space()
    name = stored_name(who.owner, call.queue, call.name)
    session.staging.reserve(name, call.position, len(call.data))
    namespace = session.access.namespace_of(call.queue)
    if namespace is not None:
        where = name, call.position, len(call.data)
        session.staged_quotas.reserve(namespace.name, namespace.quotas.staged_bytes, *where)
    data = sink_commit.stored_bytes(shard, call.queue, name, call.position, call.data)
    session.staging.write(name, call.position, data)
    return None, 0


@handles(ops.DiscardStaged)
def _discard_staged(session: Session, call: ops.DiscardStaged, who: Who) -> Reply:
    names = [stored_name(who.owner, call.queue, name) for name in call.names]
    sink_commit.discard_staged(session.shard, session.staging, names)
    return None, 0


@handles(ops.CommitSink)
def _commit_sink(session: Session, call: ops.CommitSink, who: Who) -> Reply:
    staged = tuple(stored_name(who.owner, call.queue, name) for name in call.staged)
    commit = SinkCommit(**{**structs.asdict(call), "sink": _owned_sink(who.owner, call.sink), "staged": staged})
    return sink_commit.commit_sink(session.shard, session.staging, commit, who.client)


handles(ops.GetSinkState)(
    lambda session, call, who: sink_commit.sink_state(session.shard, call.queue, _owned_sink(who.owner, call.sink))
)


def _owned_sink(owner: str, sink: str) -> str:
    if owner and OWNER_SEPARATOR in sink:
        raise InvalidField(f"sink: {shown(sink)} contains a null character")
    return owned(owner, sink) if sink else ""


# tasks


handles(ops.SubmitTasks)(lambda session, call, who: session.tasks.submit(call.tasks, who.client))
handles(ops.FinishTasks)(lambda session, call, who: finish.finish_tasks(session.shard, call.finishes))
handles(ops.NoteProgress)(
    lambda session, call, who: (None, finish.note_progress(session.shard, call.receipt, call.task_id, call.progress))
)
handles(ops.CountTasks)(lambda session, call, who: (session.tasks.counts(), 0))
handles(ops.SuggestTasks)(
    lambda session, call, who: (session.tasks.caught_up().suggest(call.field, call.prefix, call.limit), 0)
)
handles(ops.ListWorkflows)(lambda session, call, who: (session.tasks.caught_up().workflows(call.limit, call.cursor), 0))
handles(ops.FindWorkflow)(lambda session, call, who: (session.tasks.caught_up().workflow(call.workflow), 0))
handles(ops.FindTask)(lambda session, call, who: (session.tasks.task(call.task_id), 0))
handles(ops.ListTasks)(lambda session, call, who: (session.tasks.caught_up().page(call.filter), 0))
handles(ops.WaitTask)(lambda session, call, who: session.tasks.wait(call.task_id, call.wait_seconds))
handles(ops.CancelTask)(lambda session, call, who: (session.tasks.cancel(call.task_id), 0))
handles(ops.RetryTask)(lambda session, call, who: (session.tasks.retry(call.task_id), 0))
handles(ops.HeartbeatWorker)(lambda session, call, who: (session.tasks.heartbeat(call.info, who.owner), 0))
handles(ops.AwaitNews)(
    lambda session, call, who: (session.tasks.await_news(owned(who.owner, call.worker_id), call.wait_seconds), 0)
)
handles(ops.ForgetWorker)(lambda session, call, who: (None, session.tasks.forget(owned(who.owner, call.worker_id))))
handles(ops.Workers)(lambda session, call, who: (session.tasks.workers(), 0))
handles(ops.QuietWorker)(lambda session, call, who: _request_worker(session, call, "quiet"))
handles(ops.ResumeWorker)(lambda session, call, who: _request_worker(session, call, ""))
handles(ops.StopWorker)(lambda session, call, who: _request_worker(session, call, "stop", call.grace_seconds))


def _request_worker(session: Session, call: Any, requested: WorkerRequest, grace: float | None = None) -> Reply:
    """Have a worker do something; who wanted it is recorded first, since nothing of it is in the journal."""
    session.audit.record_first()
    return session.tasks.request_worker(call.worker_id, call.owner, requested, grace), 0


handles(ops.RunSchedule)(lambda session, call, who: schedules.run_schedule(session.shard, call.name))
handles(ops.Ticks)(lambda session, call, who: schedules.ticks(session.tasks, call.name, call.count, call.runs))
handles(ops.SetSchedule)(lambda session, call, who: schedules.set_schedule(session.shard, call.schedule))
handles(ops.DeleteSchedule)(lambda session, call, who: (None, schedules.delete_schedule(session.shard, call.name)))
handles(ops.Schedules)(lambda session, call, who: schedules.schedules(session.shard))


# who may do what: the access store makes its file durable before it returns, so there is no ticket to wait for


@handles(ops.CreateKey)
def _create_key(session: Session, call: ops.CreateKey, who: Who) -> Reply:
    return views.new_key(session.access, *session.access.create_key(**structs.asdict(call))), 0


handles(ops.ListKeys)(lambda session, call, who: (views.keys(session.access), 0))


@handles(ops.RotateKey)
def _rotate_key(session: Session, call: ops.RotateKey, who: Who) -> Reply:
    made = session.access.rotate_key(call.key_id, call.keep_seconds, call.expires_seconds)
    return views.new_key(session.access, *made), 0


handles(ops.RevokeKey)(lambda session, call, who: _done(session.access.revoke_key, call.key_id))


@handles(ops.SetUser)
def _set_user(session: Session, call: ops.SetUser, who: Who) -> Reply:
    changes = structs.asdict(call)
    if call.password:  # an empty one removes it
        changes["password"] = hash_password(call.password)
    return views.user(session.access, session.access.set_user(**changes)), 0


handles(ops.ListUsers)(lambda session, call, who: (views.users(session.access), 0))
handles(ops.DeleteUser)(lambda session, call, who: _done(session.access.delete_user, call.name))


@handles(ops.SetRole)
def _set_role(session: Session, call: ops.SetRole, who: Who) -> Reply:
    session.access.set_role(call.name, call.grants)
    return views.role(call.name, call.grants), 0


handles(ops.ListRoles)(lambda session, call, who: (views.roles(session.access), 0))
handles(ops.DeleteRole)(lambda session, call, who: _done(session.access.delete_role, call.name))


@handles(ops.SetNamespace)
def _set_namespace(session: Session, call: ops.SetNamespace, who: Who) -> Reply:
    session.access.set_namespace(call.name, call.quotas)
    return views.namespace(session.access, call.name, session.usage()), 0


handles(ops.ListNamespaces)(lambda session, call, who: (views.namespaces(session.access, session.usage()), 0))
handles(ops.DeleteNamespace)(lambda session, call, who: _done(session.access.delete_namespace, call.name))
handles(ops.Me)(lambda session, call, who: (views.principal(LOCAL), 0))  # a broker knows who asks, and replies itself


MISSING: Final = ops.TABLE.values() - HANDLERS.keys()
assert not MISSING, f"operations without a handler: {MISSING}"
