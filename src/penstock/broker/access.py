"""Who asks, and whether they may: the one seam that every protocol passes through."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.operations import Action


class Principal(msgspec.Struct, frozen=True):
    """Who somebody is."""

    name: str = "anonymous"


ANONYMOUS = Principal()


class Client(msgspec.Struct, frozen=True):
    """Where a request comes from: one per connection, or per request where connections mean nothing."""

    principal: Principal
    name: str  # what the program calls itself
    address: str
    protocol: str
    identity: str = ""  # whose tokens a limit per client takes: the principal's, or the address's if nobody has a name

    def __post_init__(self) -> None:
        who = self.principal.name if self.principal != ANONYMOUS else self.address
        msgspec.structs.force_setattr(self, "identity", who)


# (who, what, queue): raises `NotAuthorised`. The queue is "" when the broker itself is meant.
Authorise = Callable[[Principal, Action, str], None]


def allow_all(principal: Principal, action: Action, queue: str) -> None:
    """Everybody may do everything."""
