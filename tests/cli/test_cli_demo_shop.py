"""`penstock demo --dashboard` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


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
