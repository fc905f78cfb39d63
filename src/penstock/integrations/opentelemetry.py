"""OpenTelemetry: spans from producer to consumer, metrics and logs, through its API (extra `penstock-mq[otel]`).

    otel = OpenTelemetry()
    with penstock.connect(url, metrics=otel) as ps:
        ps.queue("orders").push(order)                # span "send orders"; its context is stored with the message
        for delivery in ps.queue("orders").lease(10):  # span "receive orders", linked to the senders'
            with otel.process(delivery):               # span "process orders", a child of the sender's
                …
    app = penstock.App(url, middleware=[otel.middleware()])
    logging.getLogger("penstock").addHandler(otel.handler())

Only the API is required; without an SDK, everything here does nothing. Names follow the semantic conventions for
messaging. The context is stored as W3C `traceparent` in the `trace` of the message, so producers and consumers in other
languages can take part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec

from penstock.client.observers import Call, Measurement, Observer
from penstock.client.values import BaseDelivery
from penstock.extras import extra
from penstock.model_tasks import TaskSubmission
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending
from penstock.tasks.middleware import Middleware
from penstock.version import VERSION

with extra("otel", "penstock.integrations.opentelemetry"):
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry._logs import LogRecord, SeverityNumber, get_logger
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SCOPE: Final = "penstock"
_VERBS: Final = {"push": "send", "lease": "receive", "settle": "settle"}
_KINDS: Final = {"push": SpanKind.PRODUCER, "lease": SpanKind.CLIENT, "settle": SpanKind.CLIENT}
_LINKS_MAX: Final = 128  # of one span, as SDKs have it
_TRACEPARENT: Final = "traceparent"
_propagator: Final = TraceContextTextMapPropagator()


class OpenTelemetry(Observer):
    """An observer that reports to OpenTelemetry, through the given providers or the global ones."""

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None, logger_provider: Any = None) -> None:
        self.tracer = trace.get_tracer(SCOPE, VERSION, tracer_provider)
        self._meter = metrics.get_meter(SCOPE, VERSION, meter_provider)
        self._logger_provider = logger_provider
        self._instruments: dict[str, Any] = {}

    def measured(self, measurement: Measurement) -> None:
        """Record a measurement in a counter or histogram of the same name."""
        instrument = self._instruments.get(measurement.name) or self._new_instrument(measurement)
        labels = dict(measurement.labels)
        if measurement.kind == "counter":
            instrument.add(measurement.value, labels)
        else:
            instrument.record(measurement.value, labels)

    def _new_instrument(self, measurement: Measurement) -> Any:
        name = measurement.name
        unit = "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else "1"
        make = self._meter.create_counter if measurement.kind == "counter" else self._meter.create_histogram
        instrument = self._instruments[name] = make(name, unit)
        return instrument

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Open a span for a call. The context of a push span is stored with the messages."""
        name, attributes = f"{_VERBS[call.operation]} {call.queue}", _attributes(call.operation, call.queue)
        with self.tracer.start_as_current_span(name, kind=_KINDS[call.operation], attributes=attributes) as span:
            if call.operation == "push":
                call.trace = traceparent()
            yield
            span.set_attribute("messaging.batch.message_count", call.messages)
            for sender in list(dict.fromkeys(call.traces))[:_LINKS_MAX]:
                found = _span_context(sender)
                if found.is_valid:
                    span.add_link(found)

    @contextmanager
    def process(self, delivery: BaseDelivery) -> Iterator[Span]:
        """Open a span for one delivery: a child of the span that pushed it, linked to the current one."""
        attributes = {
            **_attributes("process", delivery.id.queue),
            "messaging.message.id": str(delivery.id),
            "messaging.penstock.attempt": delivery.attempt,
        }
        with self._consumer_span(f"process {delivery.id.queue}", delivery.trace, attributes) as span:
            yield span

    def _consumer_span(self, name: str, sender: str | None, attributes: dict[str, Any]) -> AbstractContextManager[Span]:
        present = trace.get_current_span().get_span_context()
        links = [Link(present)] if sender and present.is_valid else []
        parent = _context_of(sender) if sender else None
        return self.tracer.start_as_current_span(
            name, context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )

    def middleware(self) -> Middleware:
        """Return middleware for an app: spans for enqueueing and for each run."""
        return TaskSpans(self)

    def handler(self, level: int = logging.INFO) -> logging.Handler:
        """Return a `logging` handler that sends records, with their spans, to OpenTelemetry."""
        return LogHandler(level, self._logger_provider)


def traceparent() -> str | None:
    """Return the context of the current span as text, or None if there is no span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_TRACEPARENT)


def _context_of(sender: str) -> Context:
    return _propagator.extract({_TRACEPARENT: sender}, Context())


def _span_context(sender: str) -> Any:
    return trace.get_current_span(_context_of(sender)).get_span_context()


def _attributes(operation: str, queue: str) -> dict[str, Any]:
    verb = _VERBS.get(operation, operation)
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": verb,
        "messaging.operation.type": verb,
        "messaging.destination.name": queue,
    }


class TaskSpans(Middleware):
    """Middleware that creates spans for tasks. Processes of a worker have it too, if the app's module adds it."""

    def __init__(self, otel: OpenTelemetry) -> None:
        self._otel = otel
        self._open: dict[int, tuple[AbstractContextManager[Span], Span]] = {}

    def enqueue(self, task: TaskSubmission) -> TaskSubmission:
        """Open a span for enqueueing. The task stores its context, unless it has a trace already."""
        attributes = {**_attributes("push", task.queue), "messaging.message.id": task.task_id}
        with self._otel.tracer.start_as_current_span(
            f"send {task.task_type}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            return msgspec.structs.replace(task, trace=task.trace or traceparent())

    def before(self, context: TaskContext) -> None:
        """Start the span of a run."""
        attributes = {**_attributes("process", context.queue), "messaging.message.id": context.id}
        entered = self._otel._consumer_span(f"process {context.envelope.task_type}", context.trace, attributes)
        self._open[id(context)] = (entered, entered.__enter__())

    def after(self, context: TaskContext, ending: Ending) -> None:
        """End the span of a run, with its error if it failed."""
        entered, span = self._open.pop(id(context), (None, None))
        if entered is None or span is None:
            return
        span.set_attribute("messaging.penstock.outcome", ending.outcome)
        if ending.outcome in ("failed", "dead"):
            span.set_status(Status(StatusCode.ERROR, ending.outcome))
        entered.__exit__(None, None, None)


_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.DEBUG, SeverityNumber.DEBUG),
)
_STANDARD: Final = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}


class LogHandler(logging.Handler):
    """Sends `logging` records to OpenTelemetry: the message, the fields in `extra`, and the span."""

    def __init__(self, level: int, logger_provider: Any = None) -> None:
        super().__init__(level)
        self._logger = get_logger(SCOPE, VERSION, logger_provider)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Errors are handled by `logging`."""
        try:
            self._logger.emit(_log_record(record))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def _log_record(record: logging.LogRecord) -> LogRecord:
    fields = {
        name: value if isinstance(value, str | bool | int | float) else str(value)
        for name, value in record.__dict__.items()
        if name not in _STANDARD
    }
    severity = next((number for least, number in _SEVERITIES if record.levelno >= least), SeverityNumber.TRACE)
    return LogRecord(
        timestamp=int(record.created * 1e9),
        context=contexts.get_current(),
        severity_number=severity,
        severity_text=record.levelname,
        body=record.getMessage(),
        attributes={"logger": record.name, **fields},
    )
