"""A command line to type at, and a broker behind it that lives in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import penstock
from penstock import Penstock
from penstock.cli import human, main

commands_of = cache(typer.main.get_command)  # the same for every command line, and slow to make


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user who runs the tests has set must not matter."""
    for name in ("PENSTOCK_URL", "PENSTOCK_CONTEXT", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(tmp_path / "contexts.json"))


@pytest.fixture(autouse=True)
def quick_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typer.main, "get_command", commands_of)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Type a command: its exit code and what it printed."""

    def typed(*words: str, stdin: bytes = b"") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return Result(code, printed.out, printed.err)

    return typed


@pytest.fixture
def ps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    """A system that commands find where a broker would be."""
    with penstock.open_in_memory() as opened:
        monkeypatch.setattr(penstock, "connect", lambda url, **options: nullcontext(opened))
        yield opened


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages always read the same, and sizes too."""
    monkeypatch.setattr(human, "age", lambda at, now=None: human.EMPTY if at is None else "12s")
    monkeypatch.setattr(human, "size", lambda count: "15.8 KiB" if count else "0 B")
