"""Logging in, for every protocol: from a credential to a principal, and what strangers may take until then.

Before it is known who asks, little is kept: a connection has `STRANGER_BYTES` and `STRANGER_SECONDS`, and an address
has `STRANGERS_MAX` such connections.

A credential is checked first; only one that is wrong counts against its address, which is refused with `RateLimited`
after too many of them. A valid one is let in whatever others behind the same address have tried. Every login and every
failure is counted, in the metrics and in the audit log. Who sends no credential at all has not tried anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.access.authenticator import Authenticator
from penstock.access.keys import PREFIX, key_id
from penstock.access.sign_in import SignIn
from penstock.access.tries import FailedTries
from penstock.broker.access import LOCAL, NOBODY, Client, Principal
from penstock.errors import NotAuthenticated, PenstockError, RateLimited, Unavailable

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

STRANGER_BYTES: Final = 16 * 1024
STRANGER_SECONDS: Final = 5.0
STRANGERS_MAX: Final = 64  # connections of one address


class Logins:
    """The way in. Without an authenticator everybody is let in as `LOCAL`."""

    def __init__(
        self, broker: Broker, authenticator: Authenticator | None = None, sign_in: SignIn | None = None
    ) -> None:
        self._broker = broker
        self._authenticator = authenticator
        self.sign_in = sign_in  # of browsers; None without access control
        self._tries = FailedTries(broker.clock) if sign_in is None else sign_in.tries
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

    def by_token(self, token: str, address: str, protocol: str) -> Principal:
        """The principal of an API key or a JWT; raises `NotAuthenticated`, or `RateLimited` after too many tries."""
        if self._authenticator is None:
            return LOCAL
        if not token:
            return self._authenticator.by_token(token)  # which refuses it
        try:
            return self._authenticator.by_token(token)
        except NotAuthenticated as error:
            kind = "key" if token.startswith(PREFIX) else "jwt"
            raise self._wrong(address, protocol, kind, error, key_id(token) or "") from None

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

    def by_proof(self, nonce: str, proof: str, place: str, address: str, protocol: str) -> tuple[Principal, str]:
        """Who has proved to have the run's key, and a token for requests that stand alone."""
        if self._authenticator is None:
            return LOCAL, ""
        try:
            return self._authenticator.by_proof(nonce, proof, place), self._authenticator.run_token
        except NotAuthenticated as error:
            raise self._wrong(address, protocol, "owner", error) from None

    def _wrong(
        self, address: str, protocol: str, credential: str, error: NotAuthenticated, claimed: str = ""
    ) -> NotAuthenticated | RateLimited:
        """Count a credential that is not valid; the error to answer with."""
        answer: NotAuthenticated | RateLimited = error
        try:
            self._tries.wrong_key(address)
        except RateLimited as limited:
            answer = limited
        self.failed(address, protocol, credential, answer, claimed)
        return answer

    # what is counted

    def succeeded(self, client: Client, credential: str = "") -> None:
        """Count a login: a connection whose client is known now, or a call where connections mean nothing.

        `credential` is the one that was checked, when it is another than the client goes on with.
        """
        if self._authenticator is not None and client.principal is not NOBODY:
            kind = credential or client.credential.partition(":")[0]
            self._broker.meter.logged_in("ok", kind)
            self._broker.audit.login(client)

    def failed(self, address: str, protocol: str, credential: str, error: PenstockError, claimed: str = "") -> None:
        """Count a failed login; `claimed` is the name, or the id of the key, that they gave."""
        outcome = "limited" if isinstance(error, RateLimited) else "failed"
        self._broker.meter.logged_in(outcome, credential)
        self._broker.audit.failed_login(address, protocol, credential=credential, claimed=claimed)

    # strangers

    def enter(self, address: str) -> None:
        """A connection was made; raises `Unavailable` when too many of its address have not logged in."""
        if self._authenticator is None:
            return
        count = self._strangers.get(address, 0) + 1
        if count > STRANGERS_MAX:
            raise Unavailable(
                f"{STRANGERS_MAX} connections from {address} have not logged in", hint="log in on those first"
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
