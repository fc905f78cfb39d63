"""Signing in: a user with a password, or a browser with the code of a one-time link.

Whatever is wrong, a user that does not exist, one without a password or a wrong password, the answer is the same and
takes as long. A try counts before the password is looked at, and is given back when it was right.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Final, Protocol

from penstock.access.grants import Principal
from penstock.access.passwords import PasswordChecker
from penstock.access.sessions import Sessions
from penstock.access.tries import FailedTries
from penstock.clock import Clock
from penstock.errors import NotAuthenticated, PenstockError

logger: Final = logging.getLogger("penstock.access")

WRONG: Final = "the name or the password is wrong"
HINT: Final = "an owner sets a new password with `penstock user set`"


class Users(Protocol):
    """Where users are kept."""

    def password_of(self, name: str) -> str:
        """The stored hash; "" for a user that does not exist or has no password."""

    def principal_of(self, name: str) -> Principal | None:
        """The principal of a user; None when it does not exist."""

    def rehash(self, name: str, before: str, after: str) -> None:
        """Replace the stored hash unless it is another by now. Called in a thread."""


class SignIn:
    """Signs in the users of one broker. Used on its event loop only."""

    def __init__(self, users: Users, clock: Clock, *, is_read_only: bool = False) -> None:
        self._users = users
        self._checker = PasswordChecker()
        self.sessions = Sessions(clock, is_read_only=is_read_only)
        self.tries = FailedTries(clock)

    async def by_password(self, name: str, password: str, address: str) -> Principal:
        """The principal of a user; raises `NotAuthenticated`, or `RateLimited` after too many tries."""
        self.tries.begin(address, name)
        stored = self._users.password_of(name)
        check = await self._checker.check(password, stored or None)
        principal = self._users.principal_of(name)
        # The user may have been deleted, or got another password, while this one was checked.
        is_current = hmac.compare_digest(stored.encode(), self._users.password_of(name).encode())
        if not check.is_right or not is_current or principal is None:
            raise NotAuthenticated(WRONG, hint=HINT)
        self.tries.succeeded(address, name)
        if check.rehashed is not None:
            await self._rehash(name, stored, check.rehashed)
        return principal

    async def _rehash(self, name: str, before: str, after: str) -> None:
        """Store the hash with today's parameters; who signs in is let in though the disk is full."""
        try:
            await asyncio.to_thread(self._users.rehash, name, before, after)
        except PenstockError as error:
            logger.warning("a new password hash could not be stored: %s", error)

    def is_user(self, name: str) -> bool:
        """Whether somebody has this name and a password."""
        return bool(self._users.password_of(name))

    def by_code(self, code: str, address: str) -> Principal:
        """The principal of a one-time link; raises `NotAuthenticated`, or `RateLimited` after too many tries."""
        try:
            return self.sessions.redeem(code)
        except NotAuthenticated:
            self.tries.wrong_key(address)
            raise

    async def hash(self, password: str) -> str:
        """What to store for a new password; raises `InvalidField` when it is too short or too long."""
        return await self._checker.hash(password)

    def password_changed(self, name: str) -> None:
        """End what the old password has opened: the sessions of the user, and the trust in their addresses."""
        self.sessions.end_all(name)
        self.tries.forget_name(name)

    def close(self) -> None:
        """End the threads that check passwords."""
        self._checker.close()
