"""docs/tutorial.md, typed in as it stands: files written, commands run, what they print compared."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.broker_restarts import hold_a_port

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
URL = "penstock://localhost:7710"
END = "~~~ that was it ~~~"

# What differs from run to run.
CHANGING = {
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "ID",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "TIME",
    r"\b\d+(\.\d+)?(ms|s|m|h|d)(\d\d[smh])?\b": "LONG",
}


# How long a reader waits for a worker: here there may be other things to do.
PATIENCE = {r"timeout=\d+\b": "timeout=100", r"--wait \d+s\b": "--wait 100s"}


class Step(NamedTuple):
    """A file to write, or a command and what it prints."""

    file: str
    text: str
    expected: str


def steps() -> Iterator[Step]:
    for kind, block in re.findall(
        r"^```(python|console)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name is not None, f"a file without a name: {block[:40]}"
            yield Step(name[1], block, "")
        else:
            for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, expected = command.partition("\n")
                yield Step("", line, expected)


class Shell:
    """One bash for the whole page, with jobs of its own."""

    def __init__(self, place: Path, port: int) -> None:
        self._place, self._port = place, port
        self._url = URL.replace("7710", str(port))
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        path = f"{Path(sys.executable).parent}:{variables['PATH']}"
        modules = f"{place}:{variables.get('PYTHONPATH', '')}"
        variables |= {"PATH": path, "PENSTOCK_URL": self._url, "COLUMNS": "120", "PYTHONPATH": modules}
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=place, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.type("set -m")

    def write(self, name: str, text: str) -> None:
        (self._place / name).write_text(patient(text.replace(URL, self._url)), encoding="utf-8")

    def type(self, line: str) -> str:
        """What a command prints."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        if line == "pip install penstock-mq":
            line = "python -c 'import penstock'"  # the tests have it from the clone
        elif line.startswith("penstock serve"):
            ports = f"--tcp-port {self._port} --http-port 0 --grpc-port 0"
            serve = f"env -u PENSTOCK_URL {line.removesuffix('&')} --json {ports}"
            # Its first line says that it listens.
            line = f"mkfifo told; {serve} > told 2> serve.log &\nexec 3< told; read -r -u 3"
        elif line.endswith("&"):
            line = f"{line.removesuffix('&')} > worker.log 2>&1 &"
        self._bash.stdin.write(f"{patient(line)}\necho; echo '{END}'\n")
        self._bash.stdin.flush()
        printed = "".join(iter(self._bash.stdout.readline, f"{END}\n"))
        return printed.removesuffix("\n")

    def leave(self) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill $(jobs -p); wait\n")
        self._bash.communicate(timeout=60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with hold_a_port(random.Random(7710)) as held:
        opened = Shell(tmp_path, held.getsockname()[1])
        yield opened
        opened.leave()


def patient(text: str) -> str:
    for pattern, longer in PATIENCE.items():
        text = re.sub(pattern, longer, text)
    return text


def plain(text: str) -> list[str]:
    """Without what differs from run to run, nor how columns are set."""
    for pattern, name in CHANGING.items():
        text = re.sub(pattern, name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def test_the_tutorial_is_true(shell):
    for step in steps():
        if step.file:
            shell.write(step.file, step.text)
        else:
            printed = shell.type(step.text)
            if not step.text.endswith("&"):
                assert plain(printed) == plain(step.expected), step.text
