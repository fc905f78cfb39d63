"""The recipe for Sentry in docs/telemetry.md, with the SDK of Sentry and a transport that keeps what it would send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import penstock
from tests.test_docs import text_of


class Kept(Transport):
    """Keeps events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    transport = Kept()
    sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=transport, default_integrations=False)
    yield transport.events
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def recipe() -> Any:
    """The class of the recipe, from the page."""
    code = re.search(r"## Sentry.*?```python\n(.*?)\n\n\napp = ", text_of("docs/telemetry.md"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["Sentry"]()


def test_what_tasks_raise_is_reported_with_the_task(events):
    app = penstock.App.in_memory(middleware=[recipe()])

    @app.task(queue="mail", max_attempts=2)
    def send(to: str) -> None:
        raise LookupError(f"no mailbox for {to}")

    @app.task
    def fine() -> int:
        return 1

    @app.task
    def snoozing() -> Any:
        return penstock.Snooze(60)

    job = send.enqueue("ann")
    fine.enqueue()
    snoozing.enqueue()
    app.run_pending()
    app.advance(3600)
    app.run_pending()

    assert len(events) == 2
    for attempt, event in enumerate(events, start=1):
        raised = event["exception"]["values"][-1]
        assert (raised["type"], raised["value"]) == ("LookupError", "no mailbox for ann")
        assert [frame["function"] for frame in raised["stacktrace"]["frames"]][-1] == "send"
        assert event["tags"] == {"task_type": "send", "queue": "mail"}
        assert event["contexts"]["task"]["id"] == str(job.id)
        assert event["contexts"]["task"]["attempt"] == attempt
