"""Whatever messages hold, a terminal gets nothing to obey; a pipe gets what was stored."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

import penstock
from penstock.cli import output

HOSTILE = "evil \x1b]0;title\x07 \x1b[2J \x9b31m \x7f \r \x08 \u202e \u2066 end"
OBEYED = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e", "\u2066"} - {"\n"}


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal(io.BytesIO(), encoding="utf-8", newline="")
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "dumb")  # no styles, so that whatever is obeyed came from the text
    return made


def shown(made: Terminal) -> str:
    made.flush()
    found: Any = made.buffer
    return str(found.getvalue().decode())


@pytest.mark.parametrize(
    "write",
    [
        lambda: output.write(output.table(["name", "what"], [["a", HOSTILE]], has_excerpt=True)),
        lambda: output.write(HOSTILE),
        lambda: output.write_json({HOSTILE: HOSTILE}),
        lambda: output.write_json_line([HOSTILE]),
        lambda: output.write_bytes(HOSTILE.encode() + b"\xff\x9b"),
        lambda: output.write_plain(HOSTILE),
        lambda: output.done(HOSTILE, None, as_json=False),
        lambda: output.write_error("a", HOSTILE, HOSTILE, as_json=False),
        lambda: output.write_error("a", HOSTILE, HOSTILE, as_json=True),
        lambda: output.for_eyes(sys.stdout).write(HOSTILE),
    ],
)
def test_nothing_that_is_written_to_a_terminal_is_obeyed(monkeypatch, write):
    made = terminal(monkeypatch)  # here: at the start of a test pytest puts its own in place
    write()

    text = shown(made)
    assert "evil" in text
    assert not OBEYED.intersection(text), ascii(text)


def test_json_is_the_same_value_and_a_pipe_gets_the_bytes_themselves(capfdbinary):
    output.write_json_line([HOSTILE])
    output.write_bytes(HOSTILE.encode())

    line, _, rest = capfdbinary.readouterr().out.partition(b"\n")
    assert json.loads(line) == [HOSTILE]
    assert rest == HOSTILE.encode() + b"\n"


@pytest.mark.parametrize("command", ["peek q", "peek q --payload-only", "lease q --ack"])
def test_commands_on_a_real_terminal(tmp_path, command):
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("q").push(HOSTILE.encode(), key=HOSTILE, headers={"a": HOSTILE})
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "300"}
    words = [sys.executable, "-m", "penstock", *command.split(), "--url", str(tmp_path / "data")]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 1 << 16):
                text += piece
        except OSError:  # the other end is closed
            pass
    os.close(ours)

    assert process.returncode == 0, text
    assert b"evil" in text
    assert not OBEYED.intersection(text.decode().replace("\r\n", "\n")), text
