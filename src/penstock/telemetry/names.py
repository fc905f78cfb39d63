"""Every metric: its name, its kind, its labels, and what it says. docs/metrics.md is held to this table."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]


class Family(NamedTuple):
    """One metric; counters are exposed with `_total` behind their name, an info with `_info`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_OF_GROUP: Final = ("queue", "group")

FAMILIES: Final = {
    family.name: family
    for family in (
        Family("penstock_pushed_messages", "counter", ("queue", "protocol"), "Messages pushed."),
        Family("penstock_pushed_bytes", "counter", ("queue", "protocol"), "Bytes of payload pushed."),
        Family("penstock_delivered_messages", "counter", _OF_GROUP, "Messages handed out, every attempt counted."),
        Family("penstock_settled_messages", "counter", (*_OF_GROUP, "outcome"), "Messages by how a delivery ended."),
        Family("penstock_refused_requests", "counter", ("queue", "code"), "Requests answered with an error."),
        Family("penstock_ready_messages", "gauge", _OF_GROUP, "Messages that could be leased now."),
        Family("penstock_leased_messages", "gauge", _OF_GROUP, "Messages in the hands of consumers."),
        Family("penstock_delayed_messages", "gauge", _OF_GROUP, "Messages that wait for their time or a retry."),
        Family("penstock_dead_messages", "gauge", _OF_GROUP, "Messages this group gave up on."),
        Family("penstock_lag_messages", "gauge", _OF_GROUP, "Messages that the group has not settled."),
        Family("penstock_oldest_unsettled_age_seconds", "gauge", _OF_GROUP, "Age of the oldest unsettled message."),
        Family("penstock_queues", "gauge", (), "Queues, those of dead letters included."),
        Family("penstock_partitions", "gauge", (), "Partitions of all queues."),
        Family("penstock_push_duration_seconds", "histogram", (), "From a push until its answer was durable."),
        Family("penstock_lease_duration_seconds", "histogram", (), "Time taken to answer a lease, without waiting."),
        Family("penstock_settle_duration_seconds", "histogram", (), "From a settlement until it was durable."),
        Family("penstock_commit_duration_seconds", "histogram", (), "One write and sync of the journal."),
        Family("penstock_delivery_latency_seconds", "histogram", ("queue",), "From push to delivery."),
        Family("penstock_task_runs", "counter", ("task_type", "outcome"), "Runs of tasks by how they ended."),
        Family("penstock_task_run_seconds", "histogram", ("task_type",), "How long runs of tasks take."),
        Family("penstock_blocked_tasks", "gauge", (), "Tasks that wait for their parents."),
        Family("penstock_workers", "gauge", ("state",), "Workers: alive, stuck, stopping or dead."),
        Family("penstock_abandoned_runs", "gauge", (), "Runs that workers could not break off."),
        Family("penstock_waiting_for_tasks", "gauge", (), "Tasks that somebody waits for the end of."),
        Family("penstock_journal_frames", "counter", (), "Frames appended since the directory was made."),
        Family("penstock_journal_durable_frames", "counter", (), "Frames that are durable."),
        Family("penstock_journal_bytes", "gauge", (), "Bytes in journal files, not yet sealed."),
        Family("penstock_journal_files", "gauge", (), "Journal files, the one in use included."),
        Family("penstock_segment_bytes", "gauge", (), "Bytes in sealed segment files."),
        Family("penstock_segment_files", "gauge", (), "Sealed segment files."),
        Family("penstock_disk_full", "gauge", (), "1 while pushes are refused because the disk is nearly full."),
        Family("penstock_upkeep_failures", "counter", ("role",), "Rounds of a background role that failed."),
        Family("penstock_connections", "gauge", ("protocol",), "Open connections."),
        Family("penstock_accepted_connections", "counter", ("protocol",), "Connections accepted."),
        Family("penstock_waiting_leases", "gauge", (), "Leases and streams that wait for messages."),
        Family("penstock_build", "info", ("version", "python"), "1, with the versions as labels."),
    )
}
