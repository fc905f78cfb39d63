"""Signing in: who is let in, that all others get the same answer, and how tries are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import argon2
import pytest

from penstock.access import passwords
from penstock.access.grants import Principal, parse_grants
from penstock.access.passwords import PasswordCheck, hash_password
from penstock.access.sign_in import SignIn
from penstock.access.tries import ADDRESS_BUDGET, PAIR_BUDGET
from penstock.clock import ManualClock
from penstock.errors import DiskFull, NotAuthenticated, RateLimited

HOME = "192.0.2.1"
PASSWORD = "correct horse battery"


class FakeUsers:
    def __init__(self, **stored: str) -> None:
        self.stored = stored
        self.principals = {name: Principal(name, parse_grants(["viewer"])) for name in stored}

    def password_of(self, name: str) -> str:
        return self.stored.get(name, "")

    def principal_of(self, name: str) -> Principal | None:
        return self.principals.get(name)

    def rehash(self, name: str, before: str, after: str) -> None:
        if self.stored[name] == before:
            self.stored[name] = after


@pytest.fixture(scope="module")
def stored() -> str:
    return hash_password(PASSWORD)


@pytest.fixture
def users(stored) -> FakeUsers:
    return FakeUsers(ann=stored, robot="")


@pytest.fixture
def run(users) -> Callable[[Callable[[SignIn], Awaitable[object]]], object]:
    """Run a scenario with what signs in."""

    def running(scenario: Callable[[SignIn], Awaitable[object]]) -> object:
        async def whole() -> object:
            sign_in = SignIn(users, ManualClock())
            try:
                return await scenario(sign_in)
            finally:
                sign_in.close()

        return asyncio.run(whole())

    return running


def test_the_right_password_lets_a_user_in(run, users):
    assert run(lambda sign_in: sign_in.by_password("ann", PASSWORD, HOME)) is users.principals["ann"]


@pytest.mark.parametrize(
    ("name", "password"),
    [("ann", "wrong password"), ("ann", ""), ("bob", PASSWORD), ("robot", PASSWORD), ("robot", ""), ("", "")],
)
def test_whatever_is_wrong_the_answer_is_the_same(run, name, password):
    with pytest.raises(NotAuthenticated) as caught:
        run(lambda sign_in: sign_in.by_password(name, password, HOME))

    assert caught.value.message == "the name or the password is wrong"
    assert PASSWORD not in str(caught.value)


def test_a_user_that_does_not_exist_or_has_no_password_is_checked_all_the_same(run, monkeypatch):
    checked = []

    def verify(password: str, stored: str | None) -> PasswordCheck:
        checked.append(stored)
        return PasswordCheck(is_right=False)

    monkeypatch.setattr(passwords, "verify_password", verify)
    for name in ("bob", "robot"):
        with pytest.raises(NotAuthenticated):
            run(lambda sign_in, name=name: sign_in.by_password(name, PASSWORD, HOME))

    assert checked == [None, None]


def test_tries_at_the_same_time_do_not_slip_through_together(run):
    async def scenario(sign_in: SignIn) -> list[type]:
        tries = (sign_in.by_password("ann", "wrong password", HOME) for _ in range(PAIR_BUDGET + 3))
        return [type(result) for result in await asyncio.gather(*tries, return_exceptions=True)]

    assert run(scenario) == [NotAuthenticated] * PAIR_BUDGET + [RateLimited] * 3


def test_the_right_password_waits_too_after_too_many_wrong_ones(run):
    async def scenario(sign_in: SignIn) -> Principal:
        for _ in range(PAIR_BUDGET):
            with pytest.raises(NotAuthenticated):
                await sign_in.by_password("ann", "wrong password", HOME)
        with pytest.raises(RateLimited):
            await sign_in.by_password("ann", PASSWORD, HOME)
        sign_in.tries._clock.advance(seconds=10)  # type: ignore[attr-defined]
        return await sign_in.by_password("ann", PASSWORD, HOME)

    assert run(scenario)


@pytest.mark.parametrize("change", ["password", "deleted"])
def test_a_user_who_changes_while_the_password_is_checked_is_not_let_in(run, users, monkeypatch, change):
    def verify(password: str, stored: str | None) -> PasswordCheck:
        if change == "password":
            users.stored["ann"] = "another hash"
        else:
            del users.principals["ann"]
        return PasswordCheck(is_right=True)

    monkeypatch.setattr(passwords, "verify_password", verify)
    with pytest.raises(NotAuthenticated):
        run(lambda sign_in: sign_in.by_password("ann", PASSWORD, HOME))


def test_an_old_hash_is_replaced(run, users):
    users.stored["ann"] = argon2.PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1).hash(PASSWORD)

    run(lambda sign_in: sign_in.by_password("ann", PASSWORD, HOME))

    assert users.stored["ann"].startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_a_link_lets_its_principal_in_once_and_wrong_codes_are_counted(run, users):
    async def scenario(sign_in: SignIn) -> None:
        ann = users.principals["ann"]
        code = sign_in.sessions.new_code(ann)
        assert sign_in.by_code(code, HOME) is ann
        for _ in range(ADDRESS_BUDGET):
            with pytest.raises(NotAuthenticated):
                sign_in.by_code(code, HOME)
        with pytest.raises(RateLimited):
            sign_in.by_code(code, HOME)
        assert sign_in.by_code(sign_in.sessions.new_code(ann), HOME) is ann

    run(scenario)


def test_a_new_password_ends_sessions_and_the_trust_in_addresses(run, users):
    async def scenario(sign_in: SignIn) -> None:
        principal = await sign_in.by_password("ann", PASSWORD, HOME)
        signed_in = sign_in.sessions.begin(principal, is_secure=True)

        assert users.stored["ann"] != await sign_in.hash("another password")
        sign_in.password_changed("ann")

        assert signed_in.session.is_over
        assert not sign_in.tries._known

    run(scenario)


def test_who_signs_in_is_let_in_though_the_new_hash_cannot_be_stored(users, run, monkeypatch, caplog):
    def full(name: str, before: str, after: str) -> None:
        raise DiskFull("no space left")

    monkeypatch.setattr(users, "rehash", full)
    monkeypatch.setattr(passwords, "verify_password", lambda password, stored: PasswordCheck(True, "better"))

    principal = run(lambda sign_in: sign_in.by_password("ann", PASSWORD, HOME))

    assert principal is users.principals["ann"]
    assert "no space left" in caplog.text
