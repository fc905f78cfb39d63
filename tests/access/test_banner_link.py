"""The banner of `penstock serve` has a one-time link when a person reads it, and never otherwise."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STOPS = "Ctrl-C stops it."
LINK = "/ui/#code="


def start(folder: Path, stdout: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "penstock", "serve", "--tcp-port", "off", "--grpc-port", "off", "--http-port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment |= {"XDG_RUNTIME_DIR": str(folder), "COLUMNS": "200"}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=log)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_is_shown_a_link(tmp_path, is_terminal):
    reading, writing = pty.openpty() if is_terminal else os.pipe()
    process = start(tmp_path, writing)
    os.close(writing)
    text = ""
    try:
        while (LINK if is_terminal else STOPS) not in text:
            text += os.read(reading, 4096).decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        if not is_terminal:
            while rest := os.read(reading, 4096):
                text += rest.decode()
        os.close(reading)

    assert (LINK in text) is is_terminal
    assert LINK not in (tmp_path / "log").read_text()
