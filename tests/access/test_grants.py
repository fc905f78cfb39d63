"""Grants: what a text grants, what it does not, and how it is refused when it makes no sense."""

from __future__ import annotations

import pytest

from penstock.access.grants import BROKER, OWNER, ROLES, Grant, Principal, parse_grants
from penstock.errors import InvalidField, InvalidName, NotAuthorised
from penstock.operations import Action


def who(*grants: str, prefix: str = "") -> Principal:
    return Principal("ann", parse_grants(grants, prefix=prefix))


@pytest.mark.parametrize(
    ("grant", "action", "queue", "allowed"),
    [
        ("push:orders", Action.PUSH, "orders", True),
        ("push:orders", Action.PUSH, "orders.dlq", True),
        ("push:orders", Action.PUSH, "orders2", False),
        ("push:orders", Action.CONSUME, "orders", False),
        ("push:orders.dlq", Action.PUSH, "orders", False),
        ("consume:shop.*", Action.CONSUME, "shop.mail", True),
        ("consume:shop.*", Action.CONSUME, "shop", False),
        ("consume:shop.*", Action.CONSUME, "shopping", False),
        ("read:*", Action.READ, "anything", True),
        ("read:*", Action.READ, "penstock.audit", False),
        ("read:penstock.*", Action.READ, "penstock.audit", True),
        ("read:pen*", Action.READ, "penstock.audit", False),
        ("monitor:*", Action.MONITOR, BROKER, True),
        ("monitor:shop.*", Action.MONITOR, BROKER, False),
        ("monitor:shop", Action.MONITOR, BROKER, False),
        ("operate:*", Action.OPERATE, BROKER, True),
        ("push,consume:a", Action.CONSUME, "a", True),
        ("viewer:shop.*", Action.MONITOR, "shop.mail", True),
        ("viewer:shop.*", Action.READ, "shop.mail", False),
        ("owner", Action.READ, "penstock.audit", True),
        ("owner", Action.EXPORT, BROKER, True),
    ],
)
def test_a_grant_allows_just_what_it_says(grant: str, action: Action, queue: str, allowed: bool) -> None:
    ann = who(grant)
    assert ann.may(action, queue) is allowed
    assert ann.may(action, queue) is allowed  # from memory
    if not allowed:
        with pytest.raises(NotAuthorised, match="'ann' lacks the permission"):
            ann.require(action, queue)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "push:",
        "pusher:orders",
        "push:a*b",
        "push:**",
        "operate:orders",
        "owner:shop.*",
        "push,:a",
        "push:a:b",
        None,
        7,
    ],
)
def test_a_text_that_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises((InvalidField, InvalidName), match="grants"):
        parse_grants([text])


def test_a_misspelt_role_is_suggested() -> None:
    with pytest.raises(InvalidField, match="did you mean 'viewer'"):
        parse_grants(["viewr:orders"])


def test_roles_of_ones_own() -> None:
    roles = {**ROLES, "clerk": ("push:orders", "monitor:*")}
    assert parse_grants(["clerk"], roles) == (Grant(Action.PUSH, "orders"), Grant(Action.MONITOR, "*"))
    assert parse_grants(["clerk:shop"], roles) == (Grant(Action.PUSH, "orders"), Grant(Action.MONITOR, "shop"))


def test_grants_stay_inside_a_namespace() -> None:
    ann = who("push:*", "read:team-a.orders", prefix="team-a.")
    assert ann.may(Action.PUSH, "team-a.orders")
    assert not ann.may(Action.PUSH, "team-b.orders")
    for outside in ("push:team-b.*", "operate", "read:orders"):
        with pytest.raises(InvalidField, match="namespace"):
            who(outside, prefix="team-a.")


def test_a_change_of_grants_is_seen_at_once_and_revoking_ends_everything() -> None:
    ann, ended = Principal("ann", OWNER), []
    assert ann.may(Action.OPERATE, BROKER)
    ann.change(parse_grants(["push:orders"]), "")
    assert not ann.may(Action.OPERATE, BROKER)
    assert ann.may(Action.PUSH, "orders")
    kept, dropped = (lambda: ended.append(1)), (lambda: ended.append(2))
    ann.once_revoked(kept)
    ann.once_revoked(dropped)
    ann.forget(dropped)
    ann.revoke()
    ann.revoke()
    assert ended == [1]
    assert not ann.may(Action.PUSH, "orders")


def test_answers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.access.grants.ANSWERS_MAX", 10)
    ann = who("push:a*")
    for number in range(100):
        assert ann.may(Action.PUSH, f"a{number}")
        assert not ann.may(Action.PUSH, f"b{number}")
        assert len(ann._answers) <= 10


def test_the_dead_letters_of_a_queue_belong_to_nobody_but_who_has_the_queue():
    of_namespace = Principal("ann", parse_grants(["read"], prefix="shop."))
    of_prefix = Principal("bob", parse_grants(["read:shop.*"]))
    of_queue = Principal("eve", parse_grants(["read:shop"]))

    for principal in (of_namespace, of_prefix):
        assert principal.may(Action.READ, "shop.orders.dlq")
        assert not principal.may(Action.READ, "shop.dlq"), "these are the dead letters of shop, which is another queue"
    assert of_queue.may(Action.READ, "shop.dlq")
    assert not of_queue.may(Action.READ, "shop.orders.dlq")


def test_an_answer_that_was_found_while_the_grants_changed_is_not_kept() -> None:
    class Changing(Grant, frozen=True):
        def matches(self, queue: str) -> bool:
            ann.change((), "")  # as the event loop may, while another thread asks
            return True

    ann = Principal("ann", [Changing(Action.READ, "*")])
    ann.may(Action.READ, "orders")
    assert not ann.may(Action.READ, "orders")


def test_what_fails_to_end_keeps_nothing_else_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    ann, ended = who("push:orders"), []

    def fails() -> None:
        ended.append("failed")
        raise OSError("the socket is gone")

    for number in range(5):
        ann.once_revoked(lambda number=number: ended.append(number))  # type: ignore[misc]
    ann.once_revoked(fails)
    ann.revoke()
    assert len(ended) == 6
    assert "could not be closed" in caplog.text


def test_what_begins_after_its_principal_was_revoked_ends_at_once() -> None:
    ann, ended = who("push:orders"), []
    ann.revoke()
    ann.once_revoked(lambda: ended.append(1))
    assert ended == [1]
