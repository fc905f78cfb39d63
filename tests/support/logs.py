"""What is logged while a block runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KNOWN = set(vars(logging.makeLogRecord({})))


@contextmanager
def capture_logs(name: str = "penstock.worker") -> Iterator[list[dict[str, Any]]]:
    """The log lines of one logger: `event`, and the fields of each."""
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = {name: value for name, value in vars(record).items() if name not in KNOWN}
            lines.append({"event": record.getMessage(), **fields})

    logger, handler = logging.getLogger(name), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
