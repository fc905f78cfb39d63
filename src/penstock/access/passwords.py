"""Passwords of users: argon2id with 19 MiB and two passes, which takes some 26 ms.

Hashing runs in two threads, so at most two processors and 38 MiB are busy with it; a queue of waiting ones that is
full refuses. A name that does not exist costs as much as one that does. Passwords are compared in Unicode's NFC, so
that `é` is the same from every keyboard. No error repeats a password or a hash.
"""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidField, RateLimited
from penstock.extras import security_extra

if TYPE_CHECKING:
    import argon2

logger: Final = logging.getLogger("penstock.access")

MEMORY_KIB: Final = 19 * 1024
PASSES: Final = 2
LANES: Final = 1
LENGTH_MIN: Final = 8  # characters
BYTES_MAX: Final = 1024
THREADS: Final = 2
WAITING_MAX: Final = 64  # that are hashed or wait for it

# Stands in for the hash of a user that does not exist. It is well formed, and no password is known for it.
_DUMMY: Final = f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${'A' * 22}${'A' * 43}"


class PasswordCheck(NamedTuple):
    """Whether a password is right; and its hash with today's parameters, when the stored one has others."""

    is_right: bool
    rehashed: str | None = None


def hash_password(password: str) -> str:
    """The text to store for a password; raises `InvalidField` when it is too short or too long."""
    problem = _problem(password)
    if problem:
        raise InvalidField(
            f"password: {problem}", hint=f"use {LENGTH_MIN} characters or more; a few random words are good"
        )
    return _hasher().hash(_normalised(password))


def verify_password(password: str, stored: str | None) -> PasswordCheck:
    """Check a password against what is stored; None is for a user that does not exist, and costs as much."""
    hasher = _hasher()
    import argon2

    if _problem(password):  # such a password was never stored, so nothing is learnt from a quick answer
        return PasswordCheck(is_right=False)
    text = _normalised(password)
    try:
        hasher.verify(_DUMMY if stored is None else stored, text)
    except argon2.exceptions.VerifyMismatchError:
        return PasswordCheck(is_right=False)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        logger.warning("a stored password hash cannot be read; set the user's password again")
        return verify_password(password, None)
    if stored is None:
        return PasswordCheck(is_right=False)
    return PasswordCheck(is_right=True, rehashed=hasher.hash(text) if hasher.check_needs_rehash(stored) else None)


class PasswordChecker:
    """Hashes and checks passwords for an event loop, two at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "penstock-passwords")
        self._waiting = 0

    async def hash(self, password: str) -> str:
        """`hash_password` in a thread."""
        self._enter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, hash_password, password)
        finally:
            self._waiting -= 1

    async def check(self, password: str, stored: str | None) -> PasswordCheck:
        """`verify_password` in a thread."""
        self._enter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, verify_password, password, stored)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads; what waits is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _enter(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise RateLimited("too many people are signing in at once", hint="try again in a moment")
        self._waiting += 1


@cache
def _hasher() -> argon2.PasswordHasher:
    with security_extra("a user with a password"):
        import argon2
    return argon2.PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def _normalised(password: str) -> str:
    return unicodedata.normalize("NFC", password)


def _problem(password: str) -> str:
    """What is wrong with a password, or nothing."""
    if len(password) > BYTES_MAX:  # before anything is made of it
        return f"longer than {BYTES_MAX:,} bytes"
    text = _normalised(password)
    if len(text) < LENGTH_MIN:
        return f"shorter than {LENGTH_MIN} characters"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "not valid Unicode text"
    return f"longer than {BYTES_MAX:,} bytes" if size > BYTES_MAX else ""
