"""Logs: one line per event, whoever logs it, with its context and without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest
import structlog

from penstock.telemetry import logs


@pytest.fixture
def stream():
    """Logs as JSON into a text; what `logging` was like before is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = io.StringIO()
    logs.setup("json", "info", text)
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_records_of_logging_and_events_of_structlog_look_the_same(stream):
    logging.getLogger("penstock.journal").warning("cut %s at %d", "tail", 7)
    structlog.get_logger("penstock.server").warning("cut", position=7)

    old, new = lines(stream)

    assert {key: old[key] for key in ("level", "event", "logger")} == {
        "level": "warning", "event": "cut tail at 7", "logger": "penstock.journal",
    }  # fmt: skip
    assert {key: new[key] for key in ("level", "event", "position")} == {
        "level": "warning", "event": "cut", "position": 7,
    }  # fmt: skip
    assert str(old["at"]).endswith("Z")
    assert list(old)[:3] == list(new)[:3] == ["at", "level", "event"]


def test_context_is_on_every_line_inside_the_block_and_of_no_other_task(stream):
    async def request(number: int) -> None:
        with logs.context(request_id=number, protocol="http"):
            await asyncio.sleep(0)
            logging.getLogger("penstock").info("inside")
        logging.getLogger("penstock").info("outside")

    async def both() -> None:
        await asyncio.gather(request(1), request(2))

    asyncio.run(both())

    found = [(line["event"], line.get("request_id"), line.get("protocol")) for line in lines(stream)]
    assert sorted(found, key=str) == [
        ("inside", 1, "http"),
        ("inside", 2, "http"),
        ("outside", None, None),
        ("outside", None, None),
    ]


def test_secrets_are_not_written(stream):
    structlog.get_logger("penstock").info("hello", token="t0p", Authorization="Bearer t0p", queue="mail")
    logging.getLogger("penstock").info("hello", extra={"api_key": "t0p"})

    assert "t0p" not in stream.getvalue()
    assert lines(stream)[0]["token"] == logs.HIDDEN
    assert lines(stream)[0]["queue"] == "mail"


def test_a_request_is_a_debug_line_and_a_slow_one_an_info_line(stream):
    logs.log_request("GET", "/livez", 200, 0.5, 1.0)
    logs.log_request("POST", "/api/v1/queues/mail/lease", 200, 1.5, 1.0, queue="mail")
    logs.set_level("debug")
    logs.log_request("GET", "/livez", 200, 0.5, 1.0)

    slow, fast = lines(stream)
    assert (slow["event"], slow["ms"], slow["queue"], slow["status"]) == ("slow request", 1500, "mail", 200)
    assert (fast["event"], fast["level"], fast["path"]) == ("request", "debug", "/livez")


def test_an_exception_is_one_line_of_json_with_its_traceback(stream):
    try:
        int("broken")
    except ValueError:
        logging.getLogger("penstock").exception("it failed")

    (line,) = lines(stream)
    assert "ValueError: invalid literal" in str(line["exception"])


def test_whatever_is_logged_can_be_written(stream):
    structlog.get_logger("penstock").info("odd", value=object(), data=b"\xff", error=ValueError("x"), many={1, 2})

    (line,) = lines(stream)
    assert line["error"] == "ValueError('x')"


def test_control_characters_are_escaped_for_people():
    reported = logs.escape_controls(None, "info", {"event": "\x1b[2Jgone", "path": "a\r\nb", "status": 200})

    assert reported == {"event": "\\x1b[2Jgone", "path": "a\\r\\nb", "status": 200}


def test_other_libraries_are_quiet_below_a_warning(stream):
    logging.getLogger("websockets").info("connection open")
    logging.getLogger("grpc").info("started")
    logging.getLogger("websockets").warning("trouble")

    assert [line["event"] for line in lines(stream)] == ["trouble"]


def test_for_people_a_line_has_columns_and_no_colours_in_a_file(stream):
    text = io.StringIO()
    logs.setup("console", "info", text)

    logging.getLogger("penstock").warning("cut", extra={"position": 7})

    assert "[warning  ] cut" in text.getvalue()
    assert "position=7" in text.getvalue()
    assert "\x1b" not in text.getvalue()


def test_a_component_may_have_a_level_of_its_own(stream):
    logs.setup("json", "warning", stream, ["storage=debug", "http=error"])
    try:
        for name in ("penstock.storage", "penstock.storage.deep", "penstock.http", "penstock.shard"):
            logging.getLogger(name).debug("debug of %s", name)
            logging.getLogger(name).warning("warning of %s", name)
        assert [line["event"] for line in lines(stream)] == [
            "debug of penstock.storage",
            "warning of penstock.storage",
            "debug of penstock.storage.deep",
            "warning of penstock.storage.deep",
            "warning of penstock.shard",
        ]

        logs.set_level("error", ["http=debug"])
        assert not logging.getLogger("penstock.storage").isEnabledFor(logging.WARNING)
        assert logging.getLogger("penstock.http").isEnabledFor(logging.DEBUG)
    finally:
        logs.set_level("warning")


def test_trace_is_below_debug_and_has_its_name():
    stream = io.StringIO()
    logs.setup("json", "trace", stream)
    logging.getLogger("penstock.broker").log(logs.TRACE, "operation", extra={"operation": "stats"})
    logs.set_level("debug")
    logging.getLogger("penstock.broker").log(logs.TRACE, "hidden")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert [(line["level"], line["event"]) for line in lines] == [("trace", "operation")]
