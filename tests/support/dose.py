"""How much of a long test to run: a share that fits into CI, or the whole of it with `PENSTOCK_DOSE=nightly`."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")
NIGHTLY: Final = os.environ.get("PENSTOCK_DOSE") == "nightly"


def dose(ci: T, nightly: T) -> T:
    """The number of examples, seeds or cycles for this run."""
    return nightly if NIGHTLY else ci
