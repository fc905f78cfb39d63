"""Endings that need no thought, made once."""

from __future__ import annotations

from typing import Final

from penstock.model import Outcome
from penstock.requests import Settling

ACK: Final = Settling(Outcome.ACKED)
RELEASE: Final = Settling(Outcome.RELEASED)
LEFT: Final = Settling(Outcome.RETRIED, None, "the consumer left its loop before this delivery was acknowledged")
