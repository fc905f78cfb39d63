"""The dashboard of this source tree."""

from __future__ import annotations

import fcntl
from pathlib import Path

import hatch_build

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "penstock" / "dashboard" / "static"


def build_dashboard() -> None:
    """Build it unless it is current; processes that test beside each other build it once."""
    with (ROOT / "web" / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not hatch_build.is_current(ROOT / "web", STATIC):
            assert hatch_build.build(ROOT / "web"), "the dashboard needs Node: `make setup` says how"
