"""A data directory from before there was access control, opened by a broker that has it.

Everything in it belongs to the owner of the broker: queues, producers, sinks, tasks, schedules go on as they were. What
others register under the same names is theirs, and another.
"""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import operations as ops
from penstock.errors import ProducerFenced
from penstock.model_tasks import TaskFilter
from tests.support.broker_process import Served
from tests.support.golden import DATA, moved, opened
from tests.support.operations import confirm, run_operation
from tests.support.sinks import committed, staged

# Format 3 came with access control: directories of later formats have keys, and take a master key.
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))
NAMES = [name for name in NAMES if name.partition("-")[2] in ("", "2")]
PORTS = ("--http-port", "off", "--grpc-port", "off")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the old directory in it, and with a runtime directory where programs of the owner find the broker."""
    with tarfile.open(DATA / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    moved(tmp_path / "data")
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for variable in ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE", "PENSTOCK_URL", "PENSTOCK_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def used_before(folder: Path) -> tuple[int, int]:
    """Use the directory without access control once more; the id and epoch of its producer."""
    session = opened(folder / "data")
    (producer, epoch), ticket = run_operation(session, ops.InitProducer("importer"))
    confirm(session, ticket)
    session.close()
    return producer, epoch


def serve(folder: Path) -> Served:
    return Served(folder, "--auth", "on", "--data", "data", *PORTS)


def test_what_was_there_passes_to_the_owner_with_its_state(folder, name):
    golden: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    producer, epoch = used_before(folder)
    assert not (folder / "data" / "access").exists()

    with serve(folder) as served, penstock.connect(served.url("tcp")) as ps:
        session = ps.session
        assert set(golden["queues"]) <= set(ps.queues())
        assert set(golden["schedules"]) == {view.spec.name for view in session.execute(ops.Schedules())}
        tasks = session.execute(ops.ListTasks(TaskFilter(limit=1000))).tasks
        assert {task.task_id: str(task.state) for task in tasks if task.task_id in golden["tasks"]} != {}

        same, next_epoch = session.execute(ops.InitProducer("importer"))
        assert (same, next_epoch > epoch) == (producer, True)
        sink = session.execute(ops.GetSinkState("rows", "daily"))
        assert sink.batch == golden["sink"]
        rows = ps.queue("rows").stats().groups["default"].messages
        again = staged(session, [b"row again"], sink="daily", queue="rows")
        assert session.execute(ops.CommitSink("rows", "daily", sink.batch, again)).batch == sink.batch
        assert ps.queue("rows").stats().groups["default"].messages == rows  # that batch was in already
        names = staged(session, [b"row new"], sink="daily", queue="rows")
        committed(session, sink.batch + 1, names, sink="daily", queue="rows")
        assert ps.queue("rows").stats().groups["default"].messages == rows + 1


def test_a_program_that_names_its_producer_goes_on_and_fences_the_one_before(folder):
    used_before(folder)

    with serve(folder) as served, penstock.connect(served.url("tcp"), producer="importer") as first:
        first.queue("jobs").push(b"one")
        with penstock.connect(served.url("tcp"), producer="importer") as second:
            second.queue("jobs").push(b"two")
        with pytest.raises(ProducerFenced):
            first.queue("jobs").push(b"three")


def test_the_same_names_of_somebody_else_are_others(folder):
    producer, epoch = used_before(folder)

    with serve(folder) as served, penstock.connect(served.url("tcp")) as ps:
        key = ps.session.execute(ops.CreateKey("newcomer", ["push:*", "consume:*"])).key
        with penstock.connect(served.url("tcp"), token=key) as other:
            foreign, _ = other.session.execute(ops.InitProducer("importer"))
        own, later = ps.session.execute(ops.InitProducer("importer"))
        assert own == producer != foreign
        assert later > epoch


def test_what_access_control_adds_to_the_directory_is_private(folder):
    used_before(folder)

    with serve(folder) as served, penstock.connect(served.url("tcp")) as ps:
        ps.session.execute(ops.CreateKey("newcomer", ["push:*"]))

    access = folder / "data" / "access"
    assert stat.S_IMODE(access.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in access.iterdir()} == {0o600}
    assert "penstock_" not in (access / "access.json").read_text()  # the key itself is nowhere
