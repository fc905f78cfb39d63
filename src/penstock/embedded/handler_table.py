"""What a handler is, and the table of them: the function that executes each operation on the session of a shard.

A handler may block and read files; it returns the result and a ticket. Whoever calls it waits until the ticket is
durable before the result leaves. An embedded session and a broker execute the same handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock import operations as ops
from penstock.shard.engine import Ticket

if TYPE_CHECKING:
    from penstock.embedded.session import Session

Kind = TypeVar("Kind", bound=ops.Operation[Any])
Reply = tuple[Any, Ticket]


class Who(NamedTuple):
    """Who requests an operation: `client` for the limits of a client, `owner` for names that belong to a principal."""

    client: str = ""
    owner: str = ""  # "" is the owner of the broker
    name: str = ""  # for people


HANDLERS: Final[dict[type[ops.Operation[Any]], Callable[[Session, Any, Who], Reply]]] = {}


def handles(operation: type[Kind]) -> Callable[[Callable[[Session, Kind, Who], Reply]], object]:
    """Register the function that executes this operation."""
    return partial(HANDLERS.__setitem__, operation)
