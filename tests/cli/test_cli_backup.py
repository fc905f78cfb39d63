"""`penstock backup` and `penstock restore`."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.cli.conftest import Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("q").push(b"1")
    return tmp_path / "data"


def test_a_stopped_directory_is_backed_up_listed_verified_pruned_and_restored(run: Run, data: Path, tmp_path: Path):
    place = str(tmp_path / "set")

    assert "has the moment" in run("backup", place, "--url", str(data)).out
    assert run("backup", "create", place, "--url", str(data), "--json").code == 0
    assert run("backup", "list", place).out.count("Z ") == 2
    assert len(run("backup", "list", place, "--json").json) == 2
    assert "is intact: 2 moments" in run("backup", "verify", place).out
    assert "removed 1 moment, 1 left" in run("backup", "prune", place, "--keep", "1").out
    assert "adds up" in run("restore", place, "--data", str(tmp_path / "new")).out
    again = run("restore", place, "--data", str(tmp_path / "new"))
    assert (again.code, "not empty" in again.err) == (1, True)


def test_keys_and_users_take_a_passphrase(run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = str(tmp_path / "set")
    refused = run("backup", place, "--url", str(data), "--with-access")
    assert "needs a passphrase" in refused.err
    monkeypatch.setenv("PENSTOCK_BACKUP_PASSPHRASE", "a long passphrase")
    assert run("backup", place, "--url", str(data), "--with-access").code == 0
    assert run("restore", place, "--data", str(tmp_path / "new"), "--with-access", "--json").json["problems"] == []
    monkeypatch.setenv("PENSTOCK_BACKUP_PASSPHRASE", "another passphrase")
    wrong = run("restore", place, "--data", str(tmp_path / "wrong"), "--with-access")
    assert "passphrase" in wrong.err


@pytest.mark.parametrize("words", [("backup", "list"), ("backup", "verify"), ("restore", "--data", "new")])
def test_what_is_no_backup_set_is_refused(run: Run, tmp_path: Path, words: tuple[str, ...]):
    refused = run(*words, str(tmp_path / "nothing"))

    assert "is not a backup set" in refused.err
    assert refused.code == 1


def test_a_place_in_the_data_directory_is_refused(run: Run, data: Path):
    assert "is in the data directory" in run("backup", str(data / "set"), "--url", str(data)).err
