# Generated from penstock/client/_async/system.py by `make generate`. Do not edit.
"""An open Penstock as programs use it: its queues, and what concerns all of them."""

from __future__ import annotations

from collections.abc import Generator, Callable, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Literal

from penstock import operations as ops
from penstock import validation
from penstock.client._sync.access import Access, Audit
from penstock.client._sync.backups import run_backup
from penstock.client._sync.bulk import Operations
from penstock.client._sync.consumer import consume
from penstock.client._sync.delivery import Delivery, Leased, LeasedQueues
from penstock.client._sync.queue import Queue, Transaction
from penstock.client._sync.stage import StageRunner
from penstock.client.arguments import check_consumer, check_function, path_text
from penstock.client.session import Session
from penstock.client.thread_runtime import Event
from penstock.model import (
    DEFAULT_GROUP,
    Freed,
    PauseState,
    Position,
    check_name,
    check_option_values,
    queue_options,
)
from penstock.model_backlog import TaskWait
from penstock.model_letters import SignatureReport
from penstock.model_metrics import SERIES_DEFAULT, HistorySeries, MetricsReport
from penstock.replies import (
    BackupState,
    ClusterView,
    ConnectionPage,
    DataKeyView,
    PipelineRun,
    PipelineView,
    ServerInfo,
    TraceView,
)
from penstock.requests import QueueOrder
from penstock.streams import StageReport, Stream


class Queues:
    """The queues of an open Penstock."""

    _session: Session

    def queue(self, name: str) -> Queue:
        """Return a handle on a queue. The first push creates the queue if needed."""
        return Queue(self._session, name)

    def lease(
        self,
        queues: str | Sequence[str],
        max: int = 1,
        wait: float = 0,
        lease_seconds: float | None = None,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        auto_ack: bool = False,
        start: Position | None = None,
        order: QueueOrder = "fair",
    ) -> LeasedQueues:
        """Lease up to `max` messages from several queues. Returns the deliveries, possibly none.

        Waits up to `wait` seconds for the first message. `queues` are names, or prefixes such as `shop.*`, which
        include queues created while the call waits. With `order="fair"` queues with messages take turns; with
        `order="listed"` earlier queues in the list are drained first.
        """
        choice = validation.queue_choice(queues, order)
        request = validation.lease_request(max, lease_seconds, consumer, None, auto_ack, start=start)
        check_name(group, "group")
        session = self._session
        reply = session.lease_queues(choice, group, request, validation.wait_seconds(wait))
        return LeasedQueues(session, [Leased(session, lease) for lease in reply.leases])

    def consume(
        self,
        queues: str | Sequence[str],
        group: str = DEFAULT_GROUP,
        batch: int | None = None,
        *,
        order: QueueOrder = "fair",
        start: Position | None = None,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
        stop: Event | None = None,
    ) -> Generator[Delivery, None, None]:
        """Iterate over deliveries of several queues: see `lease` for the queues, `Queue.consume` for the loop.

        While an ordered queue or one with lease limits has messages, they are leased one at a time.
        """

        def lease(count: int, wait: float) -> LeasedQueues:
            return self.lease(queues, count, wait, lease_seconds, group, consumer, start=start, order=order)

        validation.queue_choice(queues, order)
        check_consumer(batch, idle_seconds, stop)
        return consume(lease, self._session, batch, idle_seconds, stop)

    @property
    def audit(self) -> Audit:
        """Return the audit log: who did what."""
        return Audit(self._session)

    @property
    def operations(self) -> Operations:
        """Return the bulk operations on tasks, dead letters or messages, which run in the background."""
        return Operations(self._session)

    @property
    def access(self) -> Access:
        """Return the keys, users, roles and namespaces: who may do what."""
        return Access(self._session)

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return self._session.execute(ops.Queues())

    def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        """Create a queue with options (docs/options.md).

        Raises `QueueExists` if it exists; with `exist_ok` only if it exists with other options. Raises `UnknownOption`
        or `InvalidField` if an option is not valid.
        """
        operation = ops.CreateQueue(name, options, exist_ok)
        queue_options(options)
        self._session.execute(operation)
        return Queue(self._session, name)

    def update_queue(self, name: str, **changes: Any) -> None:
        """Change options of a queue. Partitions can be added, not removed. Raises `QueueNotFound`."""
        operation = ops.UpdateQueue(name, changes)
        check_option_values(changes)
        self._session.execute(operation)

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its messages and its dead letters. Raises `QueueNotFound`."""
        self._session.execute(ops.DeleteQueue(name))

    def transaction(self) -> Transaction:
        """Settle and push over any queues, all or nothing, when the `with` block ends without an error."""
        return Transaction(self._session)

    def metrics(self, queue: str | None = None) -> MetricsReport:
        """Return current counters, latencies and health, of one queue or of all."""
        return self._session.execute(ops.GetMetrics(queue))

    def history(
        self,
        metrics: Sequence[str] = SERIES_DEFAULT,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
        *,
        compare: int | None = None,
        marks: bool = False,
        forecast: int | None = None,
    ) -> HistorySeries:
        """Return metrics of the whole system over time: the last hour, unless `since` says otherwise.

        `step` is in seconds; None chooses one. With `forecast`, the reply includes what is expected for that many
        seconds afterwards. docs/history.md lists the metrics. A broker records them by default, a directory opened in
        this process with `history=True`.
        """
        span = (since, until, step, compare, marks, forecast)
        operation = ops.GetSeries(None, metrics, *span)  # type: ignore[arg-type]  # it makes a tuple of them
        return self._session.execute(operation)

    def signatures(self, limit: int = 50) -> SignatureReport:
        """Return the dead letters of all queues by error signature; `queue.dlq.signatures` has those of one queue."""
        return self._session.execute(ops.AllSignatures(limit))

    def trace(self, trace: str, limit: int = 200, look_back: int = 10_000) -> TraceView:
        """Return the messages and tasks of a trace, with their waiting and running times.

        Searches the last `look_back` messages of each queue.
        """
        return self._session.execute(ops.GetTrace(trace, limit, look_back))

    def info(self) -> ServerInfo:
        """Return the version of the broker, its durability and the number of queues."""
        return self._session.execute(ops.Info())

    def cluster(self) -> ClusterView:
        """Return the storage of the broker, its owner, and the nodes that share it."""
        return self._session.execute(ops.Cluster())

    def connections(self, limit: int = 1_000) -> ConnectionPage:
        """Return the connections to the broker, oldest first."""
        return self._session.execute(ops.ListConnections(limit))

    def end_connection(self, connection_id: str) -> None:
        """Close a connection. Its leases stay valid. Raises `ConnectionNotFound`."""
        self._session.execute(ops.EndConnection(connection_id))

    def pipelines(self) -> list[PipelineView]:
        """Return the pipelines with reported runs, and the last runs of each."""
        return self._session.execute(ops.Pipelines())

    def pipeline_run(self, name: str, run: str) -> PipelineRun:
        """Return one run of a pipeline. Raises `RunNotFound`."""
        return self._session.execute(ops.GetPipelineRun(name, run))

    def pipeline_report(self, name: str, run: str) -> str:
        """Return the report of a run, as HTML. Raises `RunNotFound`."""
        return self._session.execute(ops.GetPipelineReport(name, run))

    def data_keys(self) -> list[DataKeyView]:
        """Return the data keys of encrypted queues, without the key material."""
        return self._session.execute(ops.ListDataKeys())

    def stream(self, source: str) -> Stream[StageReport]:
        """Return a stream over the messages of a queue. Add stages (filter, map, key_by, …), then call `to` and `run`.

        See docs/streams.md.
        """
        return Stream(source, runner=lambda stage: StageRunner(self._session, stage).run)

    def seal(self) -> int:
        """Write everything so far to the Parquet history now. Returns the number of journal files sealed."""
        return self._session.execute(ops.Seal())

    def backup(
        self,
        destination: str | PathLike[str],
        *,
        keep: int | None = None,
        passphrase: str = "",
        on_progress: Callable[[int, int], object] | None = None,
    ) -> BackupState:
        """Take a backup while work continues, and wait for it. Returns the id of the moment.

        `destination` is a directory of the broker's machine, or a URL such as `s3://bucket/path`. `keep` removes all
        but the newest moments afterwards. With a passphrase, keys and users are included, encrypted. `on_progress` is
        called with bytes done and bytes in total.
        """
        check_function(on_progress, "on_progress")
        return run_backup(self._session, path_text(destination, "destination"), keep, passphrase, on_progress)

    def sync(self) -> int:
        """Wait until everything so far is on disk, whatever the durability. Returns the last durable sequence."""
        return self._session.execute(ops.Sync())

    def pause(
        self,
        what: Literal["delivery", "push", "all"] = "all",
        *,
        namespace: str | None = None,
        reason: str = "",
    ) -> None:
        """Pause pushes, delivery or both until `resume`, for all queues or those of a namespace, new ones included."""
        if namespace is None:
            self._session.execute(ops.PauseBroker(what, reason))
        else:
            self._session.execute(ops.PauseNamespace(namespace, what, reason))

    def resume(self, what: Literal["delivery", "push", "all"] = "all", *, namespace: str | None = None) -> None:
        """Resume what `pause` paused. Queues and groups paused individually stay paused."""
        if namespace is None:
            self._session.execute(ops.ResumeBroker(what))
        else:
            self._session.execute(ops.ResumeNamespace(namespace, what))

    def pauses(self) -> list[PauseState]:
        """Return what is paused, since when and why: the broker, namespaces, queues and groups."""
        return self._session.execute(ops.Pauses())

    def compact(self) -> Freed:
        """Apply retention now. Returns what was freed."""
        return self._session.execute(ops.Compact())

    def why_task(self, task_id: str) -> TaskWait:
        """Explain why a task does not run, with the parents it waits for. Raises `TaskNotFound`."""
        return self._session.execute(ops.WhyTask(task_id))
