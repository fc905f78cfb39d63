"""Who is let in, for one broker: API keys, JWTs and signed-in browsers, and what keeps them up to date.

Whatever changes (the access store, the keys of JWTs, the time) reaches those who are connected within a second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.access.authenticator import Authenticator
from penstock.access.discovery import Entry
from penstock.access.grants import Principal
from penstock.access.sign_in import SignIn
from penstock.access.store import AccessStore
from penstock.access.token_keys import KeySource, open_keys
from penstock.access.tokens import TokenVerifier
from penstock.clock import Clock
from penstock.config import Settings

logger: Final = logging.getLogger("penstock.access")

EXPIRY_SECONDS: Final = 0.5  # between two looks for credentials that have expired


class Identity:
    """Authenticates for one broker, from its start to its end. Raises `BadSettings` when keys cannot be used."""

    def __init__(self, settings: Settings, store: AccessStore, clock: Clock, entry: Entry) -> None:
        self._store = store
        self._keys: KeySource | None = open_keys(settings.jwt_keys, clock) if settings.jwt_keys else None
        self._tokens: TokenVerifier | None = None
        if self._keys is not None:
            about = (settings.jwt_issuer, settings.jwt_audience, self._keys, settings.jwt_grants_claim)
            self._tokens = TokenVerifier(*about, clock, store.roles, lambda name: name in store.document.namespaces)
        self.authenticator = Authenticator(store, clock, entry, self._tokens)
        users = StoredUsers(store, self.authenticator)
        self.sign_in = SignIn(users, clock, is_read_only=settings.dashboard_read_only)
        self._expiry: asyncio.Task[None] | None = None
        self._known = store.document
        self._verified_by = None if self._keys is None else self._keys.keys

    def start(self) -> None:
        """Keep everything up to date, on the running loop."""
        loop = asyncio.get_running_loop()

        def changed() -> None:
            """Called by whichever thread changed the access store."""
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._renew)

        self._store.on_change.append(changed)
        self._expiry = loop.create_task(self._expire())
        if self._keys is not None:
            self._keys.start()

    def close(self) -> None:
        """End the task and the threads."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._keys is not None:
            self._keys.close()
        self.sign_in.close()

    @property
    def key_source(self) -> KeySource | None:
        """Where the keys of JWTs come from."""
        return self._keys

    def problems(self) -> tuple[str, ...]:
        """What readyz has to say."""
        error = "" if self._keys is None else self._keys.last_error
        return (f"jwt_keys: {error}",) if error else ()

    def _renew(self) -> None:
        before, now = self._known, self._store.document
        self._known = now
        # What did not change is the same object: tokens are verified again only when they may mean something else.
        is_same = now.roles is before.roles and now.namespaces is before.namespaces
        if self._tokens is not None and not is_same:
            self._tokens.forget()
        self.authenticator.refresh()
        for name, record in before.principals.items():
            known = now.principals.get(name)
            if known is not record and record.password and (known is None or known.password != record.password):
                self.sign_in.password_changed(name)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                self._tick()
            except Exception:  # what fails for one must not let all others in for ever
                logger.exception("some expired credentials could not be revoked")

    def _tick(self) -> None:
        if self._keys is not None and self._keys.keys is not self._verified_by:
            self._verified_by = self._keys.keys
            self.authenticator.refresh()
        self.authenticator.expire()
        self.sign_in.sessions.tick()


class StoredUsers:
    """The users of the access store."""

    def __init__(self, store: AccessStore, authenticator: Authenticator) -> None:
        self._store = store
        self._authenticator = authenticator

    def password_of(self, name: str) -> str:
        record = self._store.document.principals.get(name)
        return "" if record is None else record.password

    def principal_of(self, name: str) -> Principal | None:
        return self._authenticator.by_user(name)

    def rehash(self, name: str, before: str, after: str) -> None:
        self._store.rehash_password(name, before, after)
