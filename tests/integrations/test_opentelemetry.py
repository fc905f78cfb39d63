"""OpenTelemetry, seen by the in-memory exporters of its SDK."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs import export as log_export
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import penstock
from penstock.errors import QueueFull
from penstock.integrations.opentelemetry import OpenTelemetry
from penstock.wire import trace as wire_trace


class Backend:
    """What an SDK was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self._logs = log_export.InMemoryLogRecordExporter()
        loggers = LoggerProvider()
        loggers.add_log_record_processor(log_export.SimpleLogRecordProcessor(self._logs))
        self.otel = OpenTelemetry(
            tracer_provider=tracers, meter_provider=MeterProvider([self._reader]), logger_provider=loggers
        )

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metrics(self) -> dict[str, list[Any]]:
        found: Any = self._reader.get_metrics_data()
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def logs(self) -> list[Any]:
        return [each.log_record for each in self._logs.get_finished_logs()]


@pytest.fixture
def backend():
    return Backend()


def test_a_trace_goes_from_the_producer_through_the_message_to_the_consumer(backend, tmp_path):
    with penstock.open(tmp_path, metrics=backend.otel) as ps:
        queue = ps.queue("orders")
        queue.push(b"plain")
        queue.push({"json": 1}, key="k", headers={"h": "v"})
        queue.push_many([b"a", b"b"])
        leased = queue.lease(10)
        with backend.otel.process(leased[0]):
            pass
        leased.ack()

    sent, (received,), (processed,) = (backend.spans(f"{verb} orders") for verb in ("send", "receive", "process"))
    contexts = [wire_trace.parse(delivery.trace) for delivery in leased]
    assert [span.kind for span in sent] == [SpanKind.PRODUCER] * 3
    assert [context.parent_id for context in contexts if context] == [
        f"{sent[place].context.span_id:016x}" for place in (0, 1, 2, 2)
    ]
    assert processed.parent.span_id == sent[0].context.span_id
    assert processed.context.trace_id == sent[0].context.trace_id
    assert processed.kind == SpanKind.CONSUMER
    assert {link.context.span_id for link in received.links} == {span.context.span_id for span in sent}
    assert received.attributes["messaging.batch.message_count"] == 4
    assert (leased[1].key, dict(leased[1].headers or {}), leased[1].json()) == ("k", {"h": "v"}, {"json": 1})
    assert len(backend.spans("settle orders")) == 1


def test_a_trace_that_the_caller_gives_is_kept(backend, tmp_path):
    own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with penstock.open(tmp_path, metrics=backend.otel) as ps:
        ps.queue("orders").push(b"x", trace=own)
        assert ps.queue("orders").lease(1)[0].trace == own


def test_an_error_is_on_its_span_and_counted(backend, tmp_path):
    with penstock.open(tmp_path, metrics=backend.otel) as ps:
        queue = ps.create_queue("orders", max_length=1)
        queue.push(b"x")
        with pytest.raises(QueueFull):
            queue.push(b"y")

    failed = backend.spans("send orders")[1]
    (refused,) = backend.metrics()["penstock_refused_requests"]
    assert failed.status.status_code == StatusCode.ERROR
    assert (refused.value, dict(refused.attributes)) == (1, {"queue": "orders", "code": "queue_full"})


def test_metrics_are_counters_and_histograms_of_the_documented_names(backend, tmp_path):
    with penstock.open(tmp_path, metrics=backend.otel) as ps:
        ps.queue("orders").push_many([b"abc", b"def"])
        ps.queue("orders").lease(2).ack()

    found = backend.metrics()
    assert found["penstock_pushed_messages"][0].value == 2
    assert found["penstock_pushed_bytes"][0].value == 6
    assert found["penstock_delivered_messages"][0].value == 2
    assert dict(found["penstock_settled_messages"][0].attributes) == {"queue": "orders", "outcome": "acked"}
    for name in ("push_duration", "lease_duration", "settle_duration", "delivery_latency"):
        assert found[f"penstock_{name}_seconds"][0].count == 1


def test_a_task_is_one_trace_from_enqueueing_to_its_run(backend):
    app = penstock.App.in_memory(middleware=[backend.otel.middleware()])

    @app.task
    def work(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number

    work.enqueue(1)
    work.enqueue(-1)
    app.run_pending()

    sent = backend.spans(f"send {work.name}")
    runs = sorted(backend.spans(f"process {work.name}"), key=lambda span: span.start_time)
    assert [run.parent.span_id for run in runs] == [span.context.span_id for span in sent]
    assert [run.status.status_code for run in runs] == [StatusCode.UNSET, StatusCode.ERROR]


def test_a_log_line_belongs_to_the_span_in_which_it_was_written(backend):
    logger, handler = logging.getLogger("penstock.test_otel"), backend.otel.handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with backend.otel.tracer.start_as_current_span("work") as span:
        logger.warning("slow %s", "disk", extra={"queue": "orders", "sizes": [1]})
    logger.removeHandler(handler)

    (line,) = backend.logs()
    assert (line.body, line.severity_text, line.trace_id) == ("slow disk", "WARNING", span.get_span_context().trace_id)
    assert (line.attributes["queue"], line.attributes["sizes"]) == ("orders", "[1]")


def test_without_an_sdk_it_does_nothing_and_costs_no_trace(tmp_path):
    with penstock.open(tmp_path, metrics=OpenTelemetry()) as ps:
        ps.queue("orders").push(b"x")
        assert ps.queue("orders").lease(1)[0].trace is None
