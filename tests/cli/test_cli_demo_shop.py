"""`penstock demo --dashboard` in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


def test_the_demo_fills_a_broker_prints_a_link_and_leaves_nothing_running(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    words = [sys.executable, "-m", "penstock", "demo", "--dashboard", "--seconds", "1", "--dir", str(tmp_path / "shop")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}

    done = subprocess.run(
        words, env=clean | {"XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True, timeout=120, check=True
    )

    assert "/ui/#code=" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "shop" / "data").is_dir()
    assert '"level":"error"' not in (tmp_path / "shop" / "broker.log").read_text()


def test_a_demo_that_is_told_to_stop_leaves_nothing_running(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    words = [sys.executable, "-m", "penstock", "demo", "--dashboard", "--dir", str(tmp_path / "shop")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with subprocess.Popen(
        words, env=clean | {"XDG_RUNTIME_DIR": str(runtime)}, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        link = next(line for line in demo.stdout if "/ui/#code=" in line)
        demo.terminate()
        demo.wait(120)

    port = int(link.split("/ui/")[0].rsplit(":", 1)[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
