"""The table of handlers: the function that executes each operation. Modules of handlers fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock import operations as ops
from penstock.shard.engine import Ticket

if TYPE_CHECKING:
    pass

Reply = tuple[Any, Ticket]
Handler = Callable[..., Reply]  # session, operation, identity of the client for its limits; see `OF_OWNER`

HANDLERS: Final[dict[type[ops.Operation[Any]], Handler]] = {}
# Operations on names that belong to a principal: their handlers receive its name too, "" for the owner of the broker.
OF_OWNER: Final[set[type[ops.Operation[Any]]]] = set()


def handles(
    operation: type[ops.Operation[Any]], *, of_owner: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function below executes this operation."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS[operation] = function
        if of_owner:
            OF_OWNER.add(operation)
        return function

    return register
