"""Metrics: each is documented, each moves, and a scrape is bounded and takes no lock."""

from __future__ import annotations

import random
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import limits
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model_tasks import TaskSubmission
from penstock.telemetry.meter import OTHERS, Meter
from penstock.telemetry.metrics import FAMILIES, Metrics
from tests.support.operations import run_operation
from tests.test_docs import rows

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(metrics: Metrics) -> Scrape:
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")
    samples = (sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def exposed(name: str) -> str:
    """A family's name as a scrape shows it."""
    return name + {"counter": "_total", "info": "_info"}.get(FAMILIES[name].kind, "")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(tmp_path, clock):
    session = Session(tmp_path / "data", clock=clock, rng=random.Random(1), background=False)
    yield session
    session.close()


@pytest.fixture
def ps(session) -> Penstock:
    return Penstock(BlockingSession(session))


@pytest.fixture
def metrics(session) -> Metrics:
    return Metrics(session, Meter())


def test_every_metric_is_documented_with_its_kind_and_labels(metrics):
    documented = {name: cells[:2] for name, cells in rows("docs/metrics.md").items() if not name.startswith("process_")}
    kinds = {"info": "gauge"}

    assert documented == {
        exposed(family.name): [kinds.get(family.kind, family.kind), ", ".join(family.labels)]
        for family in FAMILIES.values()
    }


def test_everything_in_a_scrape_is_documented(metrics, ps):
    ps.queue("mail").push(b"a")
    text = metrics.render()[0].decode()
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    assert shown == set(rows("docs/metrics.md"))


def test_the_gauges_of_a_group_follow_its_messages(metrics, ps, clock):
    queue = ps.queue("mail")
    queue.push_many([b"x"] * 6)
    queue.push(b"later", delay=60)
    acked, nacked, rejected, _ = queue.lease(4)
    acked.ack()
    nacked.nack(delay=60)
    rejected.reject()
    clock.advance(7)

    found = scrape(metrics)

    of_group = {"queue": "mail", "group": "default"}
    gauges = {name: found[key(f"penstock_{name}", **of_group)] for name in (
        "ready_messages", "leased_messages", "delayed_messages", "dead_messages", "lag_messages",
        "oldest_unsettled_age_seconds",
    )}  # fmt: skip
    assert gauges == {
        "ready_messages": 2,
        "leased_messages": 1,
        "delayed_messages": 2,
        "dead_messages": 1,
        "lag_messages": 5,
        "oldest_unsettled_age_seconds": 7,
    }
    outcomes = [found[key("penstock_settled_messages_total", **of_group, outcome=outcome)] for outcome in
                ("acked", "retried", "rejected")]  # fmt: skip
    assert outcomes == [1, 1, 1]
    assert found[key("penstock_ready_messages", queue="mail.dlq", group="default")] == 1


def test_the_sizes_of_the_shard_are_reported(metrics, ps, session):
    before = scrape(metrics)
    ps.create_queue("orders", partitions=4)
    ps.queue("orders").push_many([b"x" * 100] * 50)
    ps.queue("orders").lease(50).ack()
    moved = scrape(metrics)
    run_operation(session, ops.Seal())
    after = scrape(metrics)

    def change(old, new, name):
        return new[key(f"penstock_{name}")] - old[key(f"penstock_{name}")]

    assert change(before, moved, "queues") == 1
    assert change(before, moved, "partitions") == 4
    assert change(before, moved, "journal_frames_total") == 4
    assert change(before, moved, "journal_durable_frames_total") == 4
    assert change(before, moved, "journal_bytes") > 5000
    assert change(before, moved, "commit_duration_seconds_count") == 3
    assert change(moved, after, "journal_bytes") < 0
    assert change(before, after, "segment_files") == 2
    assert change(before, after, "segment_bytes") > 1000


def test_the_age_of_a_sealed_message_needs_no_file(metrics, ps, session, clock):
    ps.queue("mail").push(b"old")
    run_operation(session, ops.Seal())
    clock.advance(60)

    assert scrape(metrics)[key("penstock_oldest_unsettled_age_seconds", queue="mail", group="default")] == 60


def test_what_the_meter_counts_is_shown():
    meter, session = Meter(), Session(None, clock=ManualClock(), rng=random.Random(1), background=False)
    metrics = Metrics(session, meter)
    meter.pushed("mail", "tcp", 3, 300)
    meter.pushed("mail", "tcp", 2, 200)
    meter.leased("mail", "billing", 5, 0.003)
    meter.refused("mail", "queue_full")
    meter.took("push", 0.0004)
    meter.took("push", 9.0)
    meter.connected("tcp")
    meter.connected("tcp")
    meter.disconnected("tcp")

    found = scrape(metrics)

    assert found[key("penstock_pushed_messages_total", queue="mail", protocol="tcp")] == 5
    assert found[key("penstock_pushed_bytes_total", queue="mail", protocol="tcp")] == 500
    assert found[key("penstock_delivered_messages_total", queue="mail", group="billing")] == 5
    assert found[key("penstock_refused_requests_total", queue="mail", code="queue_full")] == 1
    assert found[key("penstock_push_duration_seconds_bucket", le="0.00025")] == 0
    assert found[key("penstock_push_duration_seconds_bucket", le="0.0005")] == 1
    assert found[key("penstock_push_duration_seconds_bucket", le="+Inf")] == 2
    assert found[key("penstock_push_duration_seconds_sum")] == 9.0004
    assert found[key("penstock_delivery_latency_seconds_bucket", queue="mail", le="0.005")] == 1
    assert found[key("penstock_connections", protocol="tcp")] == 1
    assert found[key("penstock_accepted_connections_total", protocol="tcp")] == 2
    assert meter.connections_open == 1


@pytest.mark.parametrize("batch", [1, 3])
def test_tasks_are_counted_although_nobody_looks_at_them(session, ps, metrics, clock, batch):
    def state(name: str) -> float:
        return scrape(metrics)[key("penstock_tasks", state=name)]

    def submit() -> None:
        tasks = [TaskSubmission(task_id=new_task_id(0), task_type="send", queue="mail") for _ in range(batch)]
        ps.session.push("chores", tasks_batch(tasks), None, None)

    ps.queue("mail").push({"plain": "JSON"})
    assert state("pending") == 0
    assert not session.tasks.task_index.is_open  # who has no tasks pays nothing
    submit()
    session.tasks.follow()  # as the clerk does every second
    assert state("pending") == batch
    submit()
    session.tasks.follow()
    clock.advance(1)
    assert state("pending") == 2 * batch


def test_the_first_look_counts_the_tasks_that_are_there(session, ps, metrics):
    run_operation(session, ops.SubmitTasks([TaskSubmission(task_id=new_task_id(0), task_type="send", queue="mail")]))
    assert scrape(metrics)[key("penstock_tasks", state="pending")] == 1


def test_a_label_may_hold_anything():
    meter, session = Meter(), Session(None, clock=ManualClock(), rng=random.Random(1), background=False)
    odd = 'a"b\\c\nd é {x="y"}'
    meter.refused(odd, "invalid_name")

    found = scrape(Metrics(session, meter))

    assert found[key("penstock_refused_requests_total", queue=odd, code="invalid_name")] == 1


def test_names_nobody_has_heard_of_do_not_fill_the_memory():
    meter = Meter()
    for number in range(3 * limits.metrics_series_max):
        meter.refused(f"queue-{number}", "queue_not_found")
        meter.leased(f"queue-{number}", "default", 1, 0.0)
        meter.pushed(f"queue-{number}", "http", 1, 10)

    assert len(meter.refusals) == len(meter.pushes) == len(meter.waits) == limits.metrics_series_max + 1
    assert meter.refusals[OTHERS, "queue_not_found"] == [2 * limits.metrics_series_max]
    assert meter.pushes[OTHERS, "http"] == [2 * limits.metrics_series_max, 20 * limits.metrics_series_max]


def test_a_scrape_is_bounded_whatever_the_number_of_queues_and_the_others_are_added_up(metrics, ps):
    names = [f"queue-{number:04}" for number in range(limits.metrics_series_max + 20)]
    for name in names:
        ps.queue(name).push(b"x", durability="os")

    found = scrape(metrics)

    assert sum(1 for name, _ in found if name == "penstock_ready_messages") == limits.metrics_series_max + 1
    assert found[key("penstock_ready_messages", queue=names[0], group="default")] == 1
    assert found[key("penstock_ready_messages", queue=OTHERS, group=OTHERS)] == 20


def test_a_scrape_takes_no_lock(metrics, ps, session):
    ps.queue("mail").push(b"a")
    done = threading.Event()

    def scraping() -> None:
        scrape(metrics)
        done.set()

    with session.shard.lock:
        thread = threading.Thread(target=scraping)
        thread.start()
        assert done.wait(60)
    thread.join()


def test_kinds_of_tasks_are_bounded_like_queues(monkeypatch):
    monkeypatch.setattr(limits, "metrics_series_max", 2)
    meter = Meter()
    meter.finished([("a", "completed", 0.5), ("a", "completed", 0.0), ("b", "failed", 0.1), ("c", "completed", 0.1)])
    meter.finished([("x" * 1000, "completed", 0.1)])

    assert {labels: counts[0] for labels, counts in meter.runs.items()} == {
        ("a", "completed"): 2,
        ("b", "failed"): 1,
        ("~others", "completed"): 2,
    }
    assert {name: sum(times.counts) for name, times in meter.run_times.items()} == {"a": 1, "b": 1, "~others": 2}
