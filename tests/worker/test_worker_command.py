"""`penstock worker`, as far as it goes without a broker; finding the app; noticing changed files; the watchdog."""

from __future__ import annotations

import inspect
import os
import sys
import threading

import pytest

import penstock
from penstock import cli
from penstock.errors import InvalidField
from penstock.worker import Worker, heartbeat
from penstock.worker.command import load_app
from penstock.worker.event_loop import SILENT_CHECKS_MAX, Watchdog
from penstock.worker.heartbeat import Usage
from penstock.worker.settings import settings
from tests.support.broker_loop import on_uvloop
from tests.support.logs import capture_logs
from tests.test_docs import ROOT

MODULE = """
import penstock
app = penstock.App()
class Holder:
    inner = app
number = 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where we are, with a module in it that nobody has imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "app_of_test.py").write_text(MODULE)
    yield tmp_path
    for name in ("app_of_test", "broken", "failing", "needing", "failing_here"):
        sys.modules.pop(name, None)


def test_an_app_is_found_by_its_import_path(folder):
    assert isinstance(load_app("app_of_test:app"), penstock.App)
    assert load_app("app_of_test:Holder.inner") is load_app("app_of_test:app")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("app_of_test", "is not an import path (did you mean 'app_of_test:app'?)"),
        ("app_of_test.py", "is not an import path (did you mean 'app_of_test:app'?)"),
        ("app_of_test.py:app", "is not an import path (did you mean 'app_of_test:app'?)"),
        ("./app_of_test.py:app", "is not an import path (did you mean 'app_of_test:app'?)"),
        ("src/app_of_test:app", "is not an import path (did you mean 'src.app_of_test:app'?)"),
        ("app_of_test.app", "is not an import path (did you mean 'app_of_test:app'?)"),
        ("app_of_tset:app", "there is no module 'app_of_tset' (did you mean 'app_of_test'?)"),
        (":app", "is not an import path"),
        ("app-of-test:app", "is not an import path"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("app_of_test:other", "app_of_test has no 'other' (did you mean 'app_of_test:app'?)"),
        ("app_of_test:number", "app_of_test:number is a int"),
        ("broken:app", "broken cannot be imported: SyntaxError"),
        ("failing:app", "failing cannot be imported: ZeroDivisionError: division by zero"),
        ("needing:app", "needing cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_explained(folder, path, says):
    (folder / "broken.py").write_text("def app(:")
    (folder / "failing.py").write_text("x = 1\n1 / 0")
    (folder / "needing.py").write_text("import nowhere")

    with pytest.raises(InvalidField) as refused:
        load_app(path)

    assert says in str(refused.value)


def test_the_error_of_a_module_names_the_line(folder):
    (folder / "failing_here.py").write_text("x = 1\n1 / 0")

    with pytest.raises(InvalidField, match=r"failing_here\.py:2"):
        load_app("failing_here:app")


def test_the_command_tells_in_one_line_what_is_wrong_with_its_words(folder, capsys):
    assert cli.main(["worker", "nowhere:app", "--url", "penstock://localhost:1"]) == 1
    assert cli.main(["worker", "app_of_test:app", "--log-level", "loud"]) == 1
    assert cli.main(["worker", "app_of_test:app", "--processes", "600"]) == 1
    reported = " ".join(capsys.readouterr().err.split())

    assert "there is no module 'nowhere'" in reported
    assert "--log-level: 'loud' is not known" in reported
    assert "Traceback" not in reported


def test_usage_is_measured():
    usage, doubled = Usage(0), Usage(0, children=lambda: [os.getpid(), 1 << 22])
    sum(range(100_000))

    assert usage.cpu_percent(1_000_000) >= 0
    assert usage.memory_bytes() > 1_000_000
    assert doubled.memory_bytes() >= 2 * usage.memory_bytes() * 0.9


def test_processor_time_is_not_measured_over_less_than_a_second(monkeypatch):
    seconds = iter([0.0, 0.5, 2.0])
    monkeypatch.setattr(heartbeat, "_cpu_seconds", lambda process: next(seconds))
    usage = Usage(0)

    assert usage.cpu_percent(1) == 0.0  # at once after the start: not 50 s per µs
    assert usage.cpu_percent(1_000_000) == 50.0
    assert usage.cpu_percent(1_999_999) == 50.0
    assert usage.cpu_percent(3_000_000) == 75.0


def test_every_option_of_a_worker_is_documented():
    options = {*inspect.signature(settings).parameters, *inspect.signature(Worker).parameters} - {"app", "options"}
    table = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8").split("## Settings")[1].split("\n## ")[0]

    assert {name for name in options if f"`{name}`" not in table} == set()


@on_uvloop
async def test_a_handler_that_blocks_the_loop_is_reported_with_its_place():
    begun, reported = threading.Event(), threading.Event()

    class Telling(Watchdog):
        def _report(self) -> None:
            begun.wait()
            super()._report()
            reported.set()

    with capture_logs() as lines:
        watchdog = Telling(check_seconds=0.001)
        watchdog.start()
        blocking_handler(begun, reported)
        watchdog.stop()

    assert lines[0]["event"] == "a handler blocks the event loop: leases cannot be extended"
    assert "blocking_handler" in lines[0]["where"]
    assert lines[0]["seconds"] == 0.001 * SILENT_CHECKS_MAX


def blocking_handler(begun: threading.Event, reported: threading.Event) -> None:
    begun.set()
    reported.wait()
