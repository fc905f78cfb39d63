"""Who asks: the one value that every protocol makes, and every request carries."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.access.grants import LOCAL, NOBODY, Principal
from penstock.operations import Action

__all__ = ["LOCAL", "NOBODY", "Authorise", "Client", "Principal"]

# (who, what, queue): raises `NotAuthorised`. The queue is "" when the broker itself is meant.
Authorise = Callable[[Principal, Action, str], None]


class Client(msgspec.Struct, frozen=True):
    """Where a request comes from: one per connection, or per request where connections mean nothing."""

    principal: Principal
    name: str  # what the program calls itself
    address: str
    protocol: str
    is_operator: bool = False  # it came by the port that is set apart for what operators do
    identity: str = ""  # whose tokens a limit per client takes: the principal's, or the address's if nobody has a name

    owner: str = ""  # whose producers, sinks, members, workers and leases it uses; "": those of the broker's owner

    def __post_init__(self) -> None:
        principal = self.principal
        who = self.address if principal in (LOCAL, NOBODY) else principal.name
        msgspec.structs.force_setattr(self, "identity", who)
        msgspec.structs.force_setattr(self, "owner", principal.owner)

    @property
    def credential(self) -> str:
        """What proved who it is."""
        return self.principal.credential
