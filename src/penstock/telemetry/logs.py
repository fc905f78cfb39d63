"""Logs of a broker: one event per line, JSON for machines or columns for people.

Everything goes one way: structlog events and the records of `logging` (Penstock's own modules, grpc, httpx) get the
same fields and leave by one handler on standard error. What belongs to a request (its id, the protocol, the client, the
queue, the consumer) is bound once with `context` and is on every line that is logged meanwhile. Values under names that
speak of secrets are never written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.types import EventDict, Processor

from penstock.errors import printable

TRACE: Final = 5  # below debug: every operation, and every step of a task
LEVELS: Final = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
SECRETS: Final = ("token", "secret", "password", "authorization", "cookie", "api_key")
HIDDEN: Final = "***"
PREFIX: Final = "penstock."  # of every logger of ours: what follows is the component
# What these say below a warning is ours to say, or nobody's.
QUIET: Final = ("websockets", "asyncio", "grpc", "httpx", "httpcore")

logging.addLevelName(TRACE, "TRACE")

access_logger: Final = logging.getLogger("penstock.access")


def setup(log_format: str, log_level: str, stream: TextIO | None = None, levels: Iterable[str] = ()) -> None:
    """Send every log of this process to `stream` (standard error). May be called again."""
    stream = stream or sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(as_json, stream)],
        )
    )
    _take_over(handler)
    set_level(log_level, levels)


def set_level(log_level: str, levels: Iterable[str] = ()) -> None:
    """What is logged from now on. `levels` are those of single components, such as `storage=debug`."""
    components = dict(level.split("=") for level in levels)
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(PREFIX)]:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for component, level in components.items():
        logging.getLogger(PREFIX + component).setLevel(LEVELS[level])
    logging.getLogger().setLevel(LEVELS[log_level])
    for name in QUIET:
        logging.getLogger(name).setLevel(max(LEVELS[log_level], logging.WARNING))


def context(**fields: Any) -> AbstractContextManager[None]:
    """Fields for every line logged inside the block, in this task or thread."""
    return bound_contextvars(**fields)


def request_id() -> str:
    """The id of the request that is executed; empty where requests have none."""
    return str(get_contextvars().get("request_id", ""))


def log_request(method: str, path: str, status: int, seconds: float, slow_seconds: float, **fields: Any) -> None:
    """One finished request: a debug line, or an info line when it was slow. The path is without its query."""
    level = logging.INFO if seconds >= slow_seconds else logging.DEBUG
    if access_logger.isEnabledFor(level):
        event = "slow request" if level == logging.INFO else "request"
        extra = {"method": method, "path": path, "status": status, "ms": round(seconds * 1000, 3), **fields}
        access_logger.log(level, event, extra=extra)


def warn(event: str, **fields: Any) -> None:
    """Something that whoever runs the broker should know."""
    logging.getLogger("penstock").warning(event, extra=fields)


def hide_secrets(logger: Any, method: str, event: EventDict) -> EventDict:
    """A processor: what must not be read in a log."""
    for name in event:
        if any(secret in name.lower() for secret in SECRETS):
            event[name] = HIDDEN
    return event


def escape_controls(logger: Any, method: str, event: EventDict) -> EventDict:
    """A processor: what a terminal would obey rather than show. JSON escapes it by itself."""
    for name, value in event.items():
        if isinstance(value, str) and name != "exception":
            event[name] = printable(value).replace("\n", "\\n")
    return event


def _rendering(as_json: bool, stream: TextIO) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_as_json)]
    colours = stream.isatty()
    # Not the rich traceback: it prints the values of local variables, and payloads are none of the log's business.
    return [
        escape_controls,
        structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),
    ]


def _as_json(event: MutableMapping[str, Any], default: Callable[[Any], Any], **_: Any) -> str:
    ordered = {"at": event.pop("at", None), "level": event.pop("level", None), "event": event.pop("event", None)}
    return msgspec.json.encode({**ordered, **event}, enc_hook=repr).decode()


def _take_over(handler: logging.Handler) -> None:
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    for name in QUIET:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
