"""Logging in, for every protocol: from a credential to a principal, and what strangers may take until then.

Before it is known who asks, little is kept: a connection has `STRANGER_BYTES` and `STRANGER_SECONDS`, and an address
has `STRANGERS_MAX` such connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from penstock.access.authenticator import Authenticator
from penstock.access.sign_in import SignIn
from penstock.broker.access import LOCAL, NOBODY, Principal
from penstock.errors import NotAuthenticated, Unavailable

STRANGER_BYTES: Final = 16 * 1024
STRANGER_SECONDS: Final = 5.0
STRANGERS_MAX: Final = 64  # connections of one address
T = TypeVar("T")


class Logins:
    """The way in. Without an authenticator everybody is let in as `LOCAL`."""

    def __init__(self, authenticator: Authenticator | None = None, sign_in: SignIn | None = None) -> None:
        self._authenticator = authenticator
        self.sign_in = sign_in  # of browsers; None without access control
        self._strangers: dict[str, int] = {}

    @property
    def is_required(self) -> bool:
        """Whether one must say who one is."""
        return self._authenticator is not None

    @property
    def stranger(self) -> Principal:
        """Who somebody is before they have said who they are."""
        return LOCAL if self._authenticator is None else NOBODY

    # credentials

    def by_token(self, token: str, address: str) -> Principal:
        """The principal of a token; raises `NotAuthenticated`."""
        if self._authenticator is None:
            return LOCAL
        return self._tried(self._authenticator.by_token, token)

    def by_certificate(self, names: Sequence[str]) -> Principal | None:
        """The principal for whom a client certificate stands; None when there is none, or no certificate."""
        if self._authenticator is None or not names:
            return None
        return self._authenticator.by_certificate(names)

    def challenge(self, nonce: str, place: str) -> tuple[str, str]:
        """The broker's nonce and its proof that it has the run's key."""
        if self._authenticator is None:
            return "", ""
        return self._authenticator.challenge(nonce, place)

    def by_proof(self, nonce: str, proof: str, place: str) -> tuple[Principal, str]:
        """Who has proved to have the run's key, and a token for requests that stand alone."""
        if self._authenticator is None:
            return LOCAL, ""
        return self._tried(self._authenticator.by_proof, nonce, proof, place), self._authenticator.run_token

    def _tried(self, authenticate: Callable[..., T], *credentials: Any) -> T:
        return authenticate(*credentials)

    # strangers

    def enter(self, address: str) -> None:
        """A connection was made; raises `Unavailable` when too many of its address have not logged in."""
        if self._authenticator is None:
            return
        count = self._strangers.get(address, 0) + 1
        if count > STRANGERS_MAX:
            raise Unavailable(
                f"{STRANGERS_MAX} connections of {address} have not logged in", hint="log in on those first"
            )
        self._strangers[address] = count

    def leave(self, address: str) -> None:
        """A stranger's connection has logged in, or has ended."""
        if self._authenticator is None:
            return
        count = self._strangers.get(address, 0) - 1
        if count > 0:
            self._strangers[address] = count
        else:
            self._strangers.pop(address, None)


def bearer(header: str) -> str:
    """The token of an `Authorization` header; raises `NotAuthenticated` when it is of another kind."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("authorization: it must be 'Bearer <key>'")
    return token.strip()
