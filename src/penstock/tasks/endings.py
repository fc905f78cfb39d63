"""How a run of a task ends, as a value.

A task that returns is completed. A task that raises has failed and is retried. Three more outcomes can be raised or
returned:

    raise penstock.Snooze(60)        not now: run again in a minute; this attempt does not count
    raise penstock.Retry(delay=3)    failed: run again in three seconds (without a delay: after the backoff)
    raise penstock.Cancel("why")     no longer needed: final, neither a failure nor a result

`ending` converts all of them to the report of a worker. Nothing here does I/O.
"""

from __future__ import annotations

import random
import traceback
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import Receipt, check_seconds
from penstock.model_tasks import Finish, result_error_json, result_of_bytes

if TYPE_CHECKING:
    from penstock.tasks.task import Task

RunOutcome = Literal["completed", "failed", "dead", "snoozed", "cancelled", "released"]

_rng: Final = random.Random()


class EarlyEnd(Exception):
    """What a task raises or returns to end otherwise than with a result or an error."""


class Snooze(EarlyEnd):
    """Raise or return it to run the task again after `seconds`. The attempt does not count."""

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = check_seconds(seconds, "seconds")
        super().__init__(f"snoozed for {self.seconds:g} s")


class Retry(EarlyEnd):
    """Raise or return it to run the task again after `delay` seconds or the backoff. It counts as an attempt."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        self.delay = None if delay is None else check_seconds(delay, "delay")
        self.reason = _reason(reason, "use Retry(delay=3) to wait three seconds")
        super().__init__(reason or "the task asked to be retried")


class Cancel(EarlyEnd):
    """Raise or return it to cancel the task and the tasks that wait for its result."""

    def __init__(self, reason: str = "") -> None:
        self.reason = _reason(reason)
        super().__init__(reason or "the task cancelled itself")


class Unfit(Exception):
    """Stored arguments that the function does not take: not retryable."""


class Ending(msgspec.Struct, frozen=True):
    """How one run ended: the fields of a `Finish` that do not say which run it was."""

    outcome: RunOutcome
    result: bytes = b"null"
    error: str = ""
    delay_seconds: float | None = None

    def finish(self, receipt: Receipt, task_id: str, task_type: str = "", run_seconds: float = 0.0) -> Finish:
        """The report of a run."""
        return Finish(
            receipt=receipt,
            task_id=task_id,
            outcome=self.outcome,
            result=self.result,
            error=self.error,
            delay_seconds=self.delay_seconds,
            task_type=task_type,
            run_seconds=run_seconds,
        )


def ending(value: Any, task: Task[..., Any, Any] | None = None, attempt: int = 1) -> Ending:
    """What a returned value or a raised exception means. `task` knows its backoff and what it gives up on."""
    if not isinstance(value, BaseException):
        return completed(value, task)
    if isinstance(value, Snooze):
        return Ending("snoozed", delay_seconds=value.seconds)
    if isinstance(value, Cancel):
        return Ending("cancelled", error=shortened(str(value)))
    if isinstance(value, Unfit):
        return Ending("dead", error=shortened(str(value)))
    if isinstance(value, Retry):
        delay = _delay(task, attempt) if value.delay is None else value.delay
        return Ending("failed", error=shortened(str(value)), delay_seconds=delay)
    if task is not None and isinstance(value, task.defaults.fatal):
        return Ending("dead", error=error_text(value))
    return Ending("failed", error=error_text(value), delay_seconds=_delay(task, attempt))


def completed(value: Any, task: Task[..., Any, Any] | None) -> Ending:
    """A result. The task is completed even if it cannot be stored: its work is done, and only the result is lost."""
    try:
        return Ending("completed", encoded_result(value) if task is None else task.encode_result(value))
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        return Ending("completed", result_error(f"{type(error).__name__}: {error}"))


def encoded_result(value: Any) -> bytes:
    """A result as it is stored."""
    return result_of_bytes(value) if isinstance(value, bytes | bytearray | memoryview) else msgspec.json.encode(value)


def result_error(text: str) -> bytes:
    """What is stored in the place of a result that could not be: why, cut to what errors may have."""
    return result_error_json(shortened(text))


def error_text(error: BaseException) -> str:
    """The traceback of an error, without the frames of whoever called the task."""
    lines = traceback.format_exception(type(error), error, _own_frames(error.__traceback__))
    return shortened("".join(lines).rstrip())


def shortened(text: str, bytes_max: int = limits.error_bytes_max) -> str:
    """Text that fits where errors are kept. The end of a traceback says most, so it is the beginning that goes."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    return "…\n" + data[len(data) - bytes_max + 8 :].decode(errors="ignore")


def _reason(value: Any, hint: str | None = None) -> str:
    if not isinstance(value, str):
        raise InvalidField(f"reason: {value!r} is not text", hint=hint)
    return value


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    frames = traceback
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("penstock.tasks."):
        frames = frames.tb_next
    return frames if frames is not None else traceback


def _delay(task: Task[..., Any, Any] | None, attempt: int) -> float | None:
    """The wait before the next attempt by the task's own backoff; None leaves it to the queue's."""
    return None if task is None else task.defaults.retry_seconds(attempt, _rng.random())
