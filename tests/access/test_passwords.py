"""Passwords: what is stored, what is refused, and that unknown users cost as much as known ones."""

from __future__ import annotations

import asyncio
import sys
import threading
from itertools import pairwise

import argon2
import pytest

from penstock.access import passwords
from penstock.access.passwords import PasswordChecker, hash_password, verify_password
from penstock.errors import InvalidField, RateLimited

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def stored() -> str:
    return hash_password(PASSWORD)


def test_a_password_is_stored_as_argon2id_with_19_mib_and_two_passes(stored):
    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert PASSWORD not in stored
    assert stored != hash_password(PASSWORD)


@pytest.mark.parametrize(
    ("password", "is_right"),
    [
        (PASSWORD, True),
        (PASSWORD + " ", False),
        (PASSWORD.upper(), False),
        ("", False),
        ("short", False),
        ("x" * 2000, False),
        ("\ud800" * 10, False),
        ("a\0b\0c\0d\0e", False),
    ],
)
def test_only_the_password_itself_is_right(stored, password, is_right):
    assert verify_password(password, stored) == (is_right, None)


def test_the_same_letters_typed_on_another_keyboard_are_right():
    assert verify_password("passe\u0301 partout", hash_password("pass\u00e9 partout")).is_right


@pytest.mark.parametrize(
    ("password", "problem"),
    [
        ("", "shorter than 8 characters"),
        ("seven77", "shorter than 8 characters"),
        ("e\u0301" * 7, "shorter than 8 characters"),
        ("x" * 1025, "longer than 1,024 bytes"),
        ("é" * 600, "longer than 1,024 bytes"),
        ("x" * 10_000_000, "longer than 1,024 bytes"),
        ("\ud800" * 10, "not valid Unicode text"),
    ],
)
def test_a_password_that_is_not_taken_is_refused_without_being_repeated(password, problem):
    with pytest.raises(InvalidField, match=problem) as caught:
        hash_password(password)

    assert len(password) < 8 or password[:8] not in str(caught.value)


def test_a_user_that_does_not_exist_is_checked_with_the_same_parameters(stored, monkeypatch):
    checked: list[str] = []
    verify = argon2.PasswordHasher.verify

    def recording(hasher: argon2.PasswordHasher, known: str, text: str) -> bool:
        checked.append(known)
        return verify(hasher, known, text)

    monkeypatch.setattr(argon2.PasswordHasher, "verify", recording)

    assert not verify_password(PASSWORD, None).is_right
    assert not verify_password("another password", stored).is_right

    unknown, known = (argon2.extract_parameters(text) for text in checked)
    assert unknown == known


def test_whoever_knew_the_dummy_would_not_get_in(monkeypatch):
    monkeypatch.setattr(passwords, "_DUMMY", hash_password(PASSWORD))

    assert not verify_password(PASSWORD, None).is_right


def test_a_hash_with_other_parameters_is_replaced_when_the_password_is_right(stored):
    old = argon2.PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1).hash(PASSWORD)

    check = verify_password(PASSWORD, old)

    assert check.is_right
    assert check.rehashed is not None
    assert check.rehashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert verify_password(PASSWORD, check.rehashed) == (True, None)
    assert verify_password("another password", old) == (False, None)


@pytest.mark.parametrize("damage", ["", "x", "$argon2id$", "$argon2id$v=19$m=19456,t=2,p=1$AAAA$AAAA"])
def test_a_damaged_hash_lets_nobody_in_and_says_so_in_the_log(damage, caplog):
    assert not verify_password(PASSWORD, damage).is_right
    assert "cannot be read" in caplog.text
    assert PASSWORD not in caplog.text


async def _checked_at_once(stored: str, count: int) -> list[bool]:
    checker = PasswordChecker()
    try:
        checks = await asyncio.gather(*(checker.check(PASSWORD, stored) for _ in range(count)))
        assert verify_password(PASSWORD, await checker.hash(PASSWORD)).is_right
    finally:
        checker.close()
    return [check.is_right for check in checks]


def test_no_more_than_two_are_hashed_at_a_time(stored, monkeypatch):
    running, most, lock = 0, 0, threading.Lock()
    meet = threading.Barrier(2)

    def verify(password: str, stored: str | None) -> passwords.PasswordCheck:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(60)
        with lock:
            running -= 1
        return passwords.PasswordCheck(is_right=True)

    monkeypatch.setattr(passwords, "verify_password", verify)
    assert asyncio.run(_checked_at_once(stored, 10)) == [True] * 10
    assert most == 2


def test_who_comes_when_too_many_wait_is_refused(stored, monkeypatch):
    monkeypatch.setattr(passwords, "WAITING_MAX", 3)

    async def scenario() -> list[object]:
        checker = PasswordChecker()
        try:
            results = await asyncio.gather(*(checker.check(PASSWORD, stored) for _ in range(5)), return_exceptions=True)
            assert (await checker.check(PASSWORD, stored)).is_right  # there is room again
        finally:
            checker.close()
        return list(results)

    results = asyncio.run(scenario())
    assert [type(result) for result in results[3:]] == [RateLimited, RateLimited]
    assert all(first == second for first, second in pairwise(results[:3]))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "argon2", None)
    passwords._hasher.cache_clear()

    with pytest.raises(InvalidField, match=r"pip install 'penstock-mq\[security\]'"):
        hash_password(PASSWORD)
    with pytest.raises(InvalidField, match=r"pip install 'penstock-mq\[security\]'"):
        verify_password(PASSWORD, None)
