"""`make ha-demo`, without a keyboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def demo(*faults: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.patroni", *faults]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=230
    )


def test_the_demonstration_ends_with_nothing_lost():
    done = demo("node", "etcd")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost: 0, doubled: 0, delivered after ack: 0" in done.stdout
    assert done.stdout.count("pushes are confirmed again after") == 2


@pytest.mark.parametrize(("faults", "words"), [(["volcano"], "'volcano' is no fault"), ([], "no keyboard")])
def test_what_cannot_be_shown_is_refused(faults, words):
    done = demo(*faults)

    assert done.returncode == 2
    assert words in done.stderr
