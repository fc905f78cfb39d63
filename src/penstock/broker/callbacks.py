"""Answers as values: what callbacks receive, and what coroutines await."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.errors import Internal, PenstockError

logger: Final = logging.getLogger("penstock.broker")

OnReply = Callable[[Any], object]  # called once, with the answer or with a PenstockError


def answer_of(work: Callable[[], Any]) -> Any:
    """The result of some work, or the error as a value: a fault in one request must not take the others down."""
    try:
        return work()
    except PenstockError as error:
        return error
    except Exception:
        logger.exception("internal error")
        return Internal("internal error in the broker")


async def awaited_answer_of(work: Awaitable[Any]) -> Any:
    """The result of awaited work, or its error as a value."""
    try:
        return await work
    except PenstockError as error:
        return error
    except Exception:
        logger.exception("internal error")
        return Internal("internal error in the broker")


def raised(answer: Any) -> Any:
    """An answer that is no error."""
    if isinstance(answer, PenstockError):
        raise answer
    return answer


def ignore(answer: object) -> None:
    """Do nothing with an answer: a lease that is lost meanwhile need not be released."""


def resolve(future: asyncio.Future[Any], answer: Any) -> None:
    """Hand an answer to whoever awaits it, unless they have gone."""
    if not future.done():
        future.set_result(answer)
