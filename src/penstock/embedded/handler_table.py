"""The table of handlers: the function that executes each operation. Modules of handlers fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock import operations as ops
from penstock.shard.engine import Ticket

if TYPE_CHECKING:
    from penstock.embedded.session import Session

Reply = tuple[Any, Ticket]
Handler = Callable[["Session", Any, str], Reply]  # session, operation, identity of the client for its limits

HANDLERS: Final[dict[type[ops.Operation[Any]], Handler]] = {}


def handles(operation: type[ops.Operation[Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function below executes this operation."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS[operation] = function
        return function

    return register
