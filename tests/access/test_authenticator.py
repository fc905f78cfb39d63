"""From credentials to principals: what counts, until when, and what a change in the store does to who is connected."""

from __future__ import annotations

import gc

import pytest

from penstock.access.authenticator import CHALLENGES_MAX, Authenticator
from penstock.access.discovery import BROKER, CLIENT, Entry, new_entry, new_nonce
from penstock.access.keys import make_key
from penstock.access.store import AccessStore
from penstock.access.tokens import TOKEN_BYTES_MAX
from penstock.clock import ManualClock
from penstock.errors import NotAuthenticated
from penstock.model_access import Quotas
from penstock.operations import Action

PLACE = "127.0.0.1:7710"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> AccessStore:
    return AccessStore(None, clock)


@pytest.fixture
def entry() -> Entry:
    return new_entry()


@pytest.fixture
def authenticator(store: AccessStore, clock: ManualClock, entry: Entry) -> Authenticator:
    found = Authenticator(store, clock, entry)
    store.on_change.append(found.refresh)
    return found


def refused(authenticator: Authenticator, token: str) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        authenticator.by_token(token)
    if len(token) > 8:
        assert token not in str(caught.value) + caught.value.hint
    return caught.value.message


def test_a_key_proves_its_principal(authenticator, store):
    _, text = store.create_key("shop", ["producer:orders"])

    shop = authenticator.by_token(text)

    assert (shop.name, shop.namespace) == ("shop", "")
    assert shop.may(Action.PUSH, "orders")
    assert not shop.may(Action.PUSH, "other")
    assert not shop.may(Action.CONSUME, "orders")
    assert authenticator.by_token(text) is shop


def test_what_is_no_credential_is_refused_without_repeating_it(authenticator, store):
    record, text = store.create_key("shop", ["push"])
    other = make_key(record.id).text
    unknown = make_key().text

    assert "no token was sent" in refused(authenticator, "")
    assert "not valid" in refused(authenticator, other)
    assert "not valid" in refused(authenticator, unknown)
    assert "not valid" in refused(authenticator, text[:-1])
    assert "not valid" in refused(authenticator, "penstock_x")
    assert "not an API key" in refused(authenticator, "eyJhbGciOiJub25lIn0.e30.")
    assert "longer than" in refused(authenticator, "a" * (TOKEN_BYTES_MAX + 1))


def test_a_rotated_key_counts_until_its_time_is_over_and_the_new_one_from_now_on(authenticator, store, clock):
    record, old = store.create_key("shop", ["push"])
    connected = authenticator.by_token(old)
    _, new = store.rotate_key(record.id, 3600)

    assert authenticator.by_token(old) is connected
    assert authenticator.by_token(new).name == "shop"
    clock.advance(3599)
    authenticator.refresh()
    assert not connected.is_revoked

    clock.advance(1)
    authenticator.refresh()
    assert connected.is_revoked
    assert "expired" in refused(authenticator, old)
    assert authenticator.by_token(new).may(Action.PUSH, "orders")


def test_a_key_that_has_expired_is_refused_by_itself_before_anybody_refreshes(authenticator, store, clock):
    _, text = store.create_key("shop", ["push"], expires_seconds=60)
    clock.advance(60)

    refused(authenticator, text)


def test_revoking_denies_everything_at_once_and_ends_what_was_begun(authenticator, store):
    record, text = store.create_key("shop", ["push"])
    _, kept = store.create_key("shop", None)
    shop, other, ended = authenticator.by_token(text), authenticator.by_token(kept), []
    shop.once_revoked(lambda: ended.append("shop"))
    other.once_revoked(lambda: ended.append("other"))

    store.revoke_key(record.id)

    assert ended == ["shop"]
    assert not shop.may(Action.PUSH, "orders")
    assert other.may(Action.PUSH, "orders")
    refused(authenticator, text)


def test_a_principal_that_is_deleted_loses_every_credential(authenticator, store):
    _, text = store.create_key("shop", ["push"], certificates=["shop.example.org"])
    principals = [
        authenticator.by_token(text),
        authenticator.by_certificate(["shop.example.org"]),
        authenticator.by_user("shop"),
    ]

    store.delete_user("shop")

    assert all(principal is not None and principal.is_revoked for principal in principals)
    assert authenticator.by_certificate(["shop.example.org"]) is None
    assert authenticator.by_user("shop") is None
    refused(authenticator, text)


def test_new_grants_and_roles_count_at_once_for_who_is_connected(authenticator, store):
    store.set_role("packer", ["consume:orders"])
    _, text = store.create_key("shop", ["packer"])
    shop = authenticator.by_token(text)
    assert shop.may(Action.CONSUME, "orders")

    store.set_role("packer", ["push:parcels"])
    assert not shop.may(Action.CONSUME, "orders")
    assert shop.may(Action.PUSH, "parcels")

    store.set_user("shop", grants=["consume:other"])
    assert not shop.may(Action.PUSH, "parcels")
    assert shop.may(Action.CONSUME, "other")

    store.set_namespace("team", Quotas())
    store.set_user("shop", grants=["push"], namespace="team")
    assert (shop.namespace, shop.may(Action.PUSH, "team.a"), shop.may(Action.PUSH, "other")) == ("team", True, False)
    assert not shop.is_revoked


def test_a_certificate_stands_for_whoever_it_is_given_to(authenticator, store):
    store.set_user("shop", grants=["push"], certificates=["shop.example.org"])
    shop = authenticator.by_certificate(["x", "shop.example.org"])
    assert shop is not None
    assert shop.name == "shop"
    assert authenticator.by_certificate(["example.org"]) is None

    store.set_user("shop", certificates=[])
    assert shop.is_revoked


def test_nobody_is_kept_who_is_not_connected(authenticator, store):
    _, text = store.create_key("shop", ["push"])
    authenticator.by_token(text)
    authenticator._recent.clear()
    gc.collect()

    assert len(authenticator._live) == 0


# The run's key.


def proved(entry: Entry, authenticator: Authenticator, place: str = PLACE) -> tuple[str, str]:
    """A challenge that the broker has answered, and the client's proof."""
    nonce = new_nonce()
    broker_nonce, proof = authenticator.challenge(nonce, place)
    assert entry.is_proof(proof, BROKER, nonce, broker_nonce, place)
    return broker_nonce, entry.proof(CLIENT, nonce, broker_nonce, place)


def test_who_proves_the_runs_key_is_the_owner(authenticator, entry):
    owner = authenticator.by_proof(*proved(entry, authenticator), PLACE)

    assert owner.name == "owner"
    assert owner.may(Action.OPERATE, "")
    assert authenticator.by_token(authenticator.run_token).name == "owner"
    assert authenticator.by_token(entry.key) is owner


def test_a_proof_counts_once(authenticator, entry):
    nonce, proof = proved(entry, authenticator)
    authenticator.by_proof(nonce, proof, PLACE)

    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(nonce, proof, PLACE)


def test_a_wrong_proof_uses_up_the_challenge(authenticator, entry):
    nonce, proof = proved(entry, authenticator)
    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(nonce, "0" * 64, PLACE)

    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(nonce, proof, PLACE)


def test_a_proof_counts_for_half_a_minute(authenticator, entry, clock):
    in_time, late = proved(entry, authenticator), proved(entry, authenticator)
    clock.advance(30)
    authenticator.by_proof(*in_time, PLACE)
    clock.advance(0.1)

    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(*late, PLACE)


def test_a_proof_for_another_address_run_or_side_is_none(authenticator, entry):
    with pytest.raises(NotAuthenticated):  # obtained through a tunnel
        authenticator.by_proof(*proved(entry, authenticator, "127.0.0.1:9999"), PLACE)

    nonce = new_nonce()
    broker_nonce, from_broker = authenticator.challenge(nonce, PLACE)
    with pytest.raises(NotAuthenticated):  # the broker's own proof, sent back
        authenticator.by_proof(broker_nonce, from_broker, PLACE)

    broker_nonce, _ = authenticator.challenge(nonce, PLACE)
    earlier_run = Entry("run0", entry.key)
    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(broker_nonce, earlier_run.proof(CLIENT, nonce, broker_nonce, PLACE), PLACE)

    other_key = Entry(entry.run, make_key(entry.run).text)
    broker_nonce, _ = authenticator.challenge(nonce, PLACE)
    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(broker_nonce, other_key.proof(CLIENT, nonce, broker_nonce, PLACE), PLACE)


def test_a_proof_without_a_challenge_is_none(authenticator, entry):
    for nonce in ("", new_nonce()):
        with pytest.raises(NotAuthenticated):
            authenticator.by_proof(nonce, entry.proof(CLIENT, "", nonce, ""), "")
        with pytest.raises(NotAuthenticated):
            authenticator.by_proof(nonce, entry.proof(CLIENT, "", nonce, PLACE), PLACE)


def test_challenges_that_nobody_answers_are_forgotten(authenticator, entry):
    first = proved(entry, authenticator)
    for _ in range(CHALLENGES_MAX):
        last = proved(entry, authenticator)

    assert len(authenticator._challenges) == CHALLENGES_MAX
    with pytest.raises(NotAuthenticated):
        authenticator.by_proof(*first, PLACE)
    authenticator.by_proof(*last, PLACE)


def test_a_certificate_that_is_taken_from_a_principal_ends_alone(authenticator, store):
    store.set_user("shop", grants=["push"], certificates=["old.example.org", "new.example.org"])
    old, new = (authenticator.by_certificate([name]) for name in ("old.example.org", "new.example.org"))

    store.set_user("shop", certificates=["new.example.org"])

    assert old.is_revoked
    assert not new.is_revoked


def test_a_user_who_is_deleted_and_created_again_is_somebody_else(authenticator, store, clock):
    store.set_user("ann", grants=["push"], certificates=["ann.example.org"])
    by_password, by_certificate = authenticator.by_user("ann"), authenticator.by_certificate(["ann.example.org"])
    store.on_change.clear()  # both changes come before the event loop has looked

    store.delete_user("ann")
    clock.advance(seconds=1)
    store.set_user("ann", grants=["owner"], certificates=["ann.example.org"])
    authenticator.refresh()

    assert by_password.is_revoked
    assert by_certificate.is_revoked
    assert not authenticator.by_user("ann").is_revoked


def test_a_key_that_has_expired_is_refused_before_anybody_looks_for_it_and_ends_when_somebody_does(
    authenticator, store, clock
):
    _, soon = store.create_key("shop", ["push"], expires_seconds=60)
    _, late = store.create_key("mill", ["push"], expires_seconds=120)
    shop, mill = authenticator.by_token(soon), authenticator.by_token(late)

    clock.advance(seconds=60)
    refused(authenticator, soon)
    assert not shop.is_revoked
    authenticator.expire()
    assert shop.is_revoked
    assert not mill.is_revoked

    clock.advance(seconds=60)
    authenticator.expire()
    assert mill.is_revoked


def test_a_key_that_is_rotated_ends_when_its_last_seconds_are_over(authenticator, store, clock):
    record, text = store.create_key("shop", ["push"])
    shop = authenticator.by_token(text)

    store.rotate_key(record.id, keep_seconds=10)
    authenticator.expire()
    assert not shop.is_revoked
    clock.advance(seconds=10)
    authenticator.expire()
    assert shop.is_revoked


def test_looking_for_expired_credentials_looks_nobody_up(authenticator, store, monkeypatch):
    _, text = store.create_key("shop", ["push"], expires_seconds=60)
    authenticator.by_token(text)

    monkeypatch.setattr(authenticator, "_found_key", lambda id: pytest.fail("it costs too much to do so often"))
    authenticator.expire()


def test_a_token_of_half_a_character_is_refused(authenticator):
    assert "API key" in refused(authenticator, "\ud800" * 9)
