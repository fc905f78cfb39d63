"""Observers of a session: a hook for any metrics library, over every way in and both faces."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

import penstock
from penstock import Measurement, Observer, aio
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, LeaseLost
from tests.support.brokers import BrokerThread


def names(found: list[Measurement]) -> list[str]:
    return [measurement.name.removeprefix("penstock_") for measurement in found]


EXPECTED = [
    *("pushed_messages", "pushed_bytes", "push_duration_seconds"),
    *("delivered_messages", "delivery_latency_seconds", "lease_duration_seconds"),
    *("settled_messages", "settle_duration_seconds"),
]


def test_a_function_is_called_with_every_measurement(tmp_path):
    found: list[Measurement] = []
    with penstock.open(tmp_path, metrics=found.append) as ps:
        ps.queue("mail").push(b"abc")
        ps.queue("mail").lease(1).ack()

    assert names(found) == EXPECTED
    assert (found[0].kind, found[0].value, found[0].labels) == ("counter", 1, {"queue": "mail"})
    assert found[1].value == 3
    assert found[6].labels == {"queue": "mail", "outcome": "acked"}


def test_the_asyncio_face_is_observed_too(tmp_path):
    found: list[Measurement] = []

    async def work() -> None:
        async with aio.open(tmp_path, metrics=found.append) as ps:
            await ps.queue("mail").push(b"abc")
            await (await ps.queue("mail").lease(1)).ack()

    asyncio.run(work())
    assert names(found) == EXPECTED


@pytest.mark.parametrize("protocol", ["penstock", "http"])
def test_a_client_of_a_broker_is_observed_too(protocol):
    found: list[Measurement] = []
    session = Session(None, durability="os")
    broker = BrokerThread(session, protocol=protocol)
    with penstock.connect(broker.url, metrics=found.append) as ps:
        ps.queue("mail").push(b"abc")
        ps.queue("mail").lease(1).ack()
        assert ps.metrics().latencies["push"].count == 1  # the broker measures by itself
    broker.stop()
    session.close()

    assert names(found) == EXPECTED


def test_a_session_that_nobody_observes_is_not_wrapped(tmp_path):
    with penstock.open(tmp_path) as ps:
        assert type(ps.session) is BlockingSession


def test_with_metrics_on_the_report_has_the_latencies_of_calls(tmp_path):
    with penstock.open(tmp_path, metrics=True) as ps:
        for _ in range(20):
            ps.queue("mail").push(b"x")
        for delivery in ps.queue("mail").lease(20):
            delivery.ack()
        latencies = ps.metrics().latencies

    assert (latencies["push"].count, latencies["lease"].count, latencies["settle"].count) == (20, 1, 20)
    assert latencies["delivery"].count >= 1
    assert latencies["commit"].count >= 1
    assert 0 < (latencies["push"].p50_ms or 0) <= (latencies["push"].p99_ms or 0)


def test_a_failing_observer_is_logged_and_changes_nothing(tmp_path, caplog):
    class Broken(Observer):
        def measured(self, measurement: Measurement) -> None:
            raise RuntimeError("full")

        def around(self, call):
            raise RuntimeError("closed")

    with penstock.open(tmp_path, metrics=Broken()) as ps:
        ps.queue("mail").push(b"x")
        assert len(ps.queue("mail").lease(1)) == 1
    assert "Broken" in caplog.text


def test_a_refusal_is_counted_by_its_code_and_passes_through_observers(tmp_path):
    found: list[Measurement] = []
    seen: list[str] = []

    class Watching(Observer):
        def measured(self, measurement: Measurement) -> None:
            found.append(measurement)

        @contextmanager
        def around(self, call):
            try:
                yield
            except LeaseLost as error:
                seen.append(error.code)
                raise

    with penstock.open(tmp_path, metrics=Watching()) as ps:
        ps.queue("mail").push(b"x")
        leased = ps.queue("mail").lease(1)
        leased.ack()
        with pytest.raises(LeaseLost):
            leased[0].ack()

    assert seen == ["lease_lost"]
    assert found[-1].labels == {"queue": "mail", "code": "lease_lost"}


def test_what_is_no_observer_is_refused(tmp_path):
    for wrong in ("yes", 5):
        with pytest.raises(InvalidField, match="metrics"):
            penstock.open(tmp_path / "a", metrics=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidField, match="metrics"):
            penstock.connect("penstock://127.0.0.1:1", metrics=wrong)  # type: ignore[arg-type]
