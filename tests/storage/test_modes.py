"""Who may read a data directory: the modes of what is made, and of what was there."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import operations as ops
from penstock.errors import InvalidField, StorageError
from penstock.storage import access
from tests.support.operations import run_operation


@pytest.fixture(params=[0o022, 0o000, 0o077], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def found(root: Path) -> dict[str, int]:
    """The modes of a directory and of all that lies below."""
    there = {}
    for path in [root, *root.rglob("*")]:
        with suppress(FileNotFoundError):  # a temporary file, which is renamed just now
            there[str(path.relative_to(root))] = stat.S_IMODE(path.lstat().st_mode)
    return there


def use(path: Path, data_mode: str | None = None) -> dict[str, int]:
    """The modes while it is open, after one of everything was made."""
    with penstock.open(path, data_mode=data_mode) as ps:
        ps.create_queue("q").push(b"secret")
        blocking: Any = ps.session
        session = blocking.session
        run_operation(session, ops.Stage("q", f"{0:016x}-1-{0:032x}", 0, b"secret"))
        session.files.pin("reader", None)
        session.tasks.caught_up()
        return found(path)


def is_all(modes_found: dict[str, int], root: Path, directory: int, file: int) -> bool:
    wanted = {name: directory if (root / name).is_dir() else file for name in modes_found}
    return {name: oct(mode) for name, mode in modes_found.items()} == {n: oct(m) for n, m in wanted.items()}


def test_what_is_made_is_its_owners_alone(tmp_path, umask):
    there = use(tmp_path / "data")

    assert {"lock", "PENSTOCK", "catalogue/tasks.sqlite", "staging", "segments/pins/reader.json"} <= set(there)
    assert is_all(there, tmp_path / "data", 0o700, 0o600)


def test_a_group_reads_when_it_is_allowed_to(tmp_path, umask):
    root = tmp_path / "data"

    assert is_all(use(root, "0750"), root, 0o750, 0o640)
    with penstock.open(root):
        assert found(root)["."] == 0o750, "nobody else could read it: it is left as it is"
    with penstock.open(root, data_mode="0700"):
        assert is_all(found(root), root, 0o700, 0o600)


def test_keys_are_their_owners_alone_whatever_the_group_may_read(tmp_path, umask, caplog):
    root = tmp_path / "data"

    def private() -> dict[str, int]:
        return {name: mode for name, mode in found(root).items() if name.startswith("access")}

    for _ in range(2):
        with penstock.open(root, data_mode="0750", master_key=bytes(32)) as ps:
            ps.create_queue("q", encryption=True, exist_ok=True).push(b"secret")
            assert private().keys() >= {"access", "access/data_keys.json"}
            assert is_all(private(), root, 0o700, 0o600)
            assert found(root)["PENSTOCK"] == 0o640
    for path in [root / "access", *(root / "access").iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o640)
    with penstock.open(root, master_key=bytes(32)):
        assert found(root)["."] == 0o750
        assert is_all(private(), root, 0o700, 0o600)
    assert "access/data_keys.json: other users could read it (mode 0640)" in caplog.text


def test_keys_that_others_read_and_that_cannot_be_changed_are_refused(tmp_path, monkeypatch):
    (tmp_path / "access").mkdir(mode=0o755)
    (tmp_path / "access").chmod(0o755)

    def refused(*args: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    with pytest.raises(StorageError, match="other users can read it"):
        access.apply_mode(tmp_path, 0o700)


def test_a_wider_directory_is_narrowed_and_links_are_left_alone(tmp_path):
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    use(root)
    elsewhere.write_bytes(b"")
    elsewhere.chmod(0o644)
    (root / "damaged").mkdir()
    (root / "damaged" / "link").symlink_to(elsewhere)
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            path.chmod(0o2755 if path.is_dir() else 0o644)

    with penstock.open(root):
        there = found(root)

    del there["damaged/link"]
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644
    assert is_all({name: mode & 0o777 for name, mode in there.items()}, root, 0o700, 0o600)
    assert there["."] == 0o2700, "what is beside the nine bits stays"


def test_a_directory_of_another_user_is_warned_about_and_not_changed(tmp_path, monkeypatch, caplog):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)

    with caplog.at_level(logging.WARNING):
        assert access.apply_mode(tmp_path, 0o700) == 0o700

    assert "other users may read it (mode 0755 instead of 0700)" in caplog.text
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_nothing_is_looked_at_when_the_directory_is_right(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "scandir", None)

    assert access.apply_mode(tmp_path, None) == 0o700


@pytest.mark.parametrize("wrong", ["0755", "750 ", 0o750, "u=rwx", "", "0550"])
def test_a_mode_that_cannot_be_is_refused(tmp_path, wrong):
    with pytest.raises(InvalidField, match="data_mode"):
        penstock.open(tmp_path / "data", data_mode=wrong)

    assert not (tmp_path / "data").exists()
