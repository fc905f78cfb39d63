"""The command line: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli import demo, main
from penstock.storage.disk import ReadOnlyDisk

SYNCS_PER_SECOND_MAX = 1000.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with some messages, closed."""
    with penstock.open(tmp_path / "data") as ps:
        for number in range(5):
            ps.queue("mail").push(f"letter {number}")
        ps.queue("mail").lease(2).ack()
    return tmp_path / "data"


def damage(data: Path, text: bytes) -> None:
    (journal,) = (data / "journal").glob("*.log")
    content = journal.read_bytes()
    assert content.count(text) == 1
    journal.write_bytes(content.replace(text, text[:-1] + b"!"))


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return captured.out, captured.err


def test_version_is_reported_in_words_and_in_json(capsys):
    assert main(["version"]) == 0
    assert printed(capsys)[0] == f"penstock {penstock.__version__}\n"
    assert main(["version", "--json"]) == 0
    assert json.loads(printed(capsys)[0]) == {"version": penstock.__version__}


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    out, _ = printed(capsys)
    assert all(command in out for command in ("demo", "doctor", "verify", "version"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["doktor"], "did you mean 'doctor'?"),
        (["frobnicate"], "'penstock --help' lists the commands"),
        (["doctor"], "usage: penstock doctor [OPTIONS] {directory}; see 'penstock doctor --help'"),
        (["doctor", "x", "--frobnicate"], "see 'penstock doctor --help'"),
        (["doctor", "x", "--repaid"], "did you mean '--repair'?"),
        (["verify", "a", "b"], "see 'penstock verify --help'"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line_and_a_hint(words, expected, capsys):
    assert main(words) == 1
    out, err = printed(capsys)
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert hint == f"hint:  {expected}"


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_a_sound_directory_is_said_to_be_sound(command, data, capsys):
    assert main([command, str(data)]) == 0
    out, err = printed(capsys)
    assert str(data) in out
    assert "✓" in out
    assert err == ""


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_where_nothing_is_the_exit_code_is_four(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "nowhere")]) == 4
    (tmp_path / "empty").mkdir()
    assert main([command, str(tmp_path / "empty")]) == 4
    assert list((tmp_path / "empty").iterdir()) == []
    assert main([command, str(tmp_path / "nowhere"), "--json"]) == 4
    assert json.loads(printed(capsys)[0])["error"]["code"] == "nothing_there"


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_a_path_that_is_a_file_is_the_users_error(command, tmp_path, capsys):
    (tmp_path / "file").write_text("not a directory")
    assert main([command, str(tmp_path / "file")]) == 1
    assert "is a file" in printed(capsys)[1]


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--repair"], ["verify"]])
def test_a_directory_in_use_is_refused_and_says_who_has_it(words, data, capsys):
    with penstock.open(data):
        assert main([*words, str(data)]) == 2
    assert f"process {os.getpid()}" in printed(capsys)[1]


def test_nobody_can_open_a_directory_while_it_is_looked_at_and_two_may_look(data):
    first, second = ReadOnlyDisk(data), ReadOnlyDisk(data)
    first.lock()
    second.lock()
    with pytest.raises(penstock.PenstockError, match="held by"):
        penstock.open(data)
    first.close()
    second.close()
    penstock.open(data).close()


def test_doctor_names_the_damage_changes_nothing_and_says_what_to_do(data, capsys):
    damage(data, b"letter 3")
    (journal,) = (data / "journal").glob("*.log")
    before = journal.read_bytes()

    assert main(["doctor", str(data)]) == 2

    out, _ = printed(capsys)
    assert "the frame of sequence 4 is damaged" in out
    assert "at position" in out
    assert [line.split() for line in out.splitlines() if line.startswith("mail")] == [
        ["mail", "0", "3", "default", "(1)", "1"]
    ]
    assert f"penstock doctor {data} --repair" in out
    assert journal.read_bytes() == before


def test_doctor_repairs_keeps_a_copy_and_the_directory_opens_again(data, capsys):
    damage(data, b"letter 3")
    with pytest.raises(penstock.PenstockError, match="is damaged"):
        penstock.open(data)

    assert main(["doctor", str(data), "--repair"]) == 0

    assert "repaired" in printed(capsys)[0]
    assert len(list((data / "damaged").glob("*/journal/*.log"))) == 1
    with penstock.open(data) as ps:
        assert [delivery.payload for delivery in ps.queue("mail").lease(10)] == [b"letter 2", b"letter 4"]
    assert main(["doctor", str(data)]) == 0
    assert main(["verify", str(data)]) == 0


def test_repairing_a_sound_directory_does_nothing(data, capsys):
    assert main(["doctor", str(data), "--repair"]) == 0
    assert "is intact" in printed(capsys)[0]
    assert not (data / "damaged").exists()


def test_doctor_and_verify_speak_json(data, capsys):
    damage(data, b"letter 3")

    assert main(["doctor", str(data), "--json"]) == 2
    report = json.loads(printed(capsys)[0])
    assert report["is_sound"] is False
    assert report["losses"][0] == {
        "queue": "mail",
        "partition": "0",
        "first_offset": 3,
        "end_offset": 4,
        "unsettled": {"default": 1},
        "is_certain": True,
    }
    assert main(["verify", str(data), "--json"]) == 2
    assert "sequence 4" in json.loads(printed(capsys)[0])["problems"][0]


def test_verify_shows_the_account_of_each_group(data, capsys):
    assert main(["verify", str(data)]) == 0
    rows = [line.split() for line in printed(capsys)[0].splitlines() if line.startswith("mail")]
    assert rows == [["mail", "default", "5", "3", "0", "0", "2", "0", "0"]]


def test_a_defect_is_one_line_too(monkeypatch, capsys):
    def broken(*words: object) -> None:
        raise RuntimeError("something that never happens")

    monkeypatch.setattr("penstock.cli.output.write", broken)

    assert main(["version"]) == 2
    assert "RuntimeError: something that never happens" in printed(capsys)[1]


def test_the_demonstration_runs_to_its_end_and_loses_nothing(tmp_path, capsys, monkeypatch):
    # It pushes as many messages as the disk can take in a while, which in memory are far too many.
    measured = demo.raw_syncs_per_second
    monkeypatch.setattr(demo, "raw_syncs_per_second", lambda *call: min(measured(*call), SYNCS_PER_SECOND_MAX))
    assert main(["demo", "--quick", "--dir", str(tmp_path / "demo")]) == 0

    out, err = printed(capsys)
    assert err == ""
    assert "0 confirmed messages are lost" in out
    assert "adds up" in out
    assert "What next" in out
    assert main(["doctor", str(tmp_path / "demo" / "shop")]) == 0


def test_the_demonstration_leaves_a_directory_with_something_in_it_alone(data, capsys):
    before = sorted(data.rglob("*"))
    assert main(["demo", "--dir", str(data)]) == 1
    assert "is not empty" in printed(capsys)[1]
    assert sorted(data.rglob("*")) == before


def test_the_module_is_a_command_too():
    words = [sys.executable, "-m", "penstock", "version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("penstock ")
