"""Types survive: mypy, in strict mode, knows the arguments and the result of every task."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parent.parent.parent


def test_mypy_knows_arguments_and_results(monkeypatch):
    monkeypatch.chdir(ROOT)
    # As `make check` runs it, so that what mypy has learnt there serves here.
    reported, problems, status = api.run(["tests/typing/tasks.py"])
    assert (reported.splitlines()[-1:], problems, status) == (["Success: no issues found in 1 source file"], "", 0), (
        reported
    )
