"""The access store: every change, what it refuses, and what a file that is damaged or a power cut do to it."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.access.store import FILE, VERSION, AccessStore, Document
from penstock.clock import ManualClock
from penstock.errors import AccessNotFound, BadSettings, Damaged, InvalidField, InvalidName, PenstockError
from penstock.model_access import Quotas
from penstock.storage.disk import RealDisk
from tests.support.forgetful import ForgetfulDisk, PowerCut

HOUR = 3600.0
Change = Callable[[AccessStore], Any]


@pytest.fixture
def disk() -> ForgetfulDisk:
    return ForgetfulDisk(7)


@pytest.fixture
def store(disk: ForgetfulDisk) -> AccessStore:
    return AccessStore(disk, ManualClock())


def filled(disk: ForgetfulDisk | None, clock: ManualClock | None = None) -> AccessStore:
    """A store with one of everything."""
    store = AccessStore(disk, clock or ManualClock())
    store.set_namespace("team", Quotas(queues=3))
    store.set_role("packer", ["consume:orders"])
    store.create_key("shop", ["producer:orders"])
    store.set_user("ann", grants=["viewer"], password="hash", certificates=["ann.example.org"])
    store.set_user("bob", grants=["consumer"], namespace="team")
    return store


def key_of(store: AccessStore) -> str:
    return next(iter(store.document.keys))


def delete_namespace(store: AccessStore) -> None:
    if "bob" in store.document.principals:
        store.delete_user("bob")
    store.delete_namespace("team")


CHANGES: dict[str, Change] = {
    "create_key": lambda store: store.create_key("new", ["push:*"]),
    "another_key": lambda store: store.create_key("shop", None),
    "rotate_key": lambda store: store.rotate_key(key_of(store), HOUR),
    "revoke_key": lambda store: store.revoke_key(key_of(store)),
    "set_user": lambda store: store.set_user("ann", grants=["reader"]),
    "delete_user": lambda store: store.delete_user("shop"),
    "set_role": lambda store: store.set_role("packer", ["push:parcels"]),
    "delete_role": lambda store: store.delete_role("packer"),
    "set_namespace": lambda store: store.set_namespace("team", Quotas(bytes=9)),
    "delete_namespace": delete_namespace,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_notified_once_it_is_stored_and_is_there_when_opened_again(name, disk):
    store, notified = filled(disk), []
    before = store.document
    store.on_change.append(lambda: notified.append(AccessStore(disk, ManualClock()).document == store.document))

    CHANGES[name](store)

    assert store.document != before
    assert notified
    assert all(notified)
    assert AccessStore(disk.crash(), ManualClock()).document == store.document


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "delete_namespace"])
def test_a_power_cut_at_any_operation_leaves_the_old_document_or_the_new_one(name):
    cuts = 0
    for operation in range(1, 100):
        disk = ForgetfulDisk(operation)
        store = filled(disk)
        allowed = [store.document]
        write = disk.write_whole

        def noted(name: str, data: Any, allowed: list[Document] = allowed, write: Any = write) -> None:
            allowed.append(msgspec.json.decode(data, type=Document))
            write(name, data)

        disk.write_whole = noted  # type: ignore[method-assign]
        disk.crash_at(operation)
        try:
            CHANGES[name](store)
        except PowerCut:
            cuts += 1
        else:
            allowed = [store.document]  # it was reported
        survived = AccessStore(disk.crash(), ManualClock()).document
        assert survived in allowed
        if not disk.fired:
            break
    assert cuts > 2


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_cannot_be_written_changes_nothing_and_notifies_nobody(name, disk):
    store, notified = filled(disk), []
    if name == "delete_namespace":
        store.delete_user("bob")
    before = store.document
    store.on_change.append(lambda: notified.append(1))
    disk.fail_at(1, errno.ENOSPC)

    with pytest.raises(PenstockError):
        CHANGES[name](store)

    assert store.document is before
    assert notified == []
    assert AccessStore(disk, ManualClock()).document == before


def test_what_is_about_to_change_is_told_first_and_may_be_refused(disk):
    store, told = filled(disk), []
    before = store.document

    def refuse(what: str, target: str) -> None:
        told.append((what, target))
        raise Damaged("the audit log cannot be written")

    store.before_change = refuse
    for change in CHANGES.values():
        with pytest.raises(Damaged):
            change(store)

    assert [what for what, _ in told] == [
        *("create_key", "create_key", "rotate_key", "revoke_key", "set_user", "delete_user", "set_role", "delete_role"),
        *("set_namespace", "delete_user"),
    ]
    assert store.document is before


BAD: list[tuple[Change, type[PenstockError], str]] = [
    (lambda store: store.create_key("new", None), InvalidField, "needs grants"),
    (lambda store: store.create_key("", ["push"]), InvalidName, "''"),
    (lambda store: store.create_key("a/b", ["push"]), InvalidName, "a/b"),
    (lambda store: store.create_key("owner", ["push"]), InvalidField, "reserved"),
    (lambda store: store.create_key("local", ["push"]), InvalidField, "reserved"),
    (lambda store: store.create_key("nobody", ["push"]), InvalidField, "reserved"),
    (lambda store: store.create_key("penstock.x", ["push"]), InvalidField, "reserved"),
    (lambda store: store.create_key("new", ["pusher"]), InvalidField, "did you mean 'push'"),
    (lambda store: store.create_key("new", ["push:"]), InvalidField, "not a pattern"),
    (lambda store: store.create_key("new", ["export:orders"]), InvalidField, "as a whole"),
    (lambda store: store.create_key("new", ["push"], "none"), AccessNotFound, "no namespace"),
    (lambda store: store.create_key("new", ["push:other"], "team"), InvalidField, "outside the namespace"),
    (lambda store: store.create_key("new", ["owner"], "team"), InvalidField, "whole broker"),
    (lambda store: store.create_key("shop", ["owner"]), InvalidField, "other grants"),
    (lambda store: store.create_key("shop", None, "team"), InvalidField, "other grants"),
    (lambda store: store.create_key("x", ["push"], certificates=["ann.example.org"]), InvalidField, "'ann'"),
    (lambda store: store.rotate_key("none", HOUR), AccessNotFound, "no key 'none'"),
    (lambda store: store.revoke_key("none"), AccessNotFound, "no key 'none'"),
    (lambda store: store.set_user("new"), InvalidField, "needs grants"),
    (lambda store: store.set_user("owner", grants=["owner"]), InvalidField, "reserved"),
    (lambda store: store.set_user("ann", grants=["nothing"]), InvalidField, "not an action or a role"),
    (lambda store: store.set_user("ann", namespace="none"), AccessNotFound, "no namespace"),
    (lambda store: store.set_user("shop", namespace="team"), InvalidField, "outside the namespace"),
    (lambda store: store.set_user("bob", certificates=["ann.example.org"]), InvalidField, "'ann'"),
    (lambda store: store.delete_user("none"), AccessNotFound, "'none'"),
    (lambda store: store.set_role("viewer", ["push"]), InvalidField, "built in"),
    (lambda store: store.set_role("a b", ["push"]), InvalidName, "a b"),
    (lambda store: store.set_role("clerk", ["packer"]), InvalidField, "not an action or a role"),
    (lambda store: store.set_role("packer", ["operate"]), InvalidField, "'carl'"),
    (lambda store: store.set_role("clerk", ["export"]), InvalidField, "'dora'"),
    (lambda store: store.delete_role("viewer"), AccessNotFound, "viewer"),
    (lambda store: store.set_namespace("a.b", Quotas()), InvalidField, "is not a valid name"),
    (lambda store: store.set_namespace("penstock", Quotas()), InvalidField, "is not a valid name"),
    (lambda store: store.delete_namespace("team"), InvalidField, "'bob' belongs to"),
    (lambda store: store.delete_namespace("none"), AccessNotFound, "'none'"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused_and_nothing_is_changed(change, error, text, disk):
    store, notified = filled(disk), []
    store.set_role("clerk", ["push:*"])
    store.set_user("carl", grants=["packer:orders"])
    store.set_user("dora", grants=["clerk"], namespace="team")
    before = store.document
    store.on_change.append(lambda: notified.append(1))

    with pytest.raises(error, match=text):
        change(store)

    assert store.document is before
    assert notified == []


def test_a_role_that_somebody_has_stays(store):
    store.set_role("packer", ["consume:orders"])
    store.set_user("bob", grants=["push:a", "viewer,packer:orders"])

    with pytest.raises(InvalidField, match="'bob'"):
        store.delete_role("packer")


def test_grants_follow_the_role_and_stay_in_the_namespace(store):
    store.set_namespace("team", Quotas())
    store.set_role("packer", ["consume:*"])
    bob = store.set_user("bob", grants=["packer"], namespace="team")

    assert list(map(str, store.grants_of(bob))) == ["consume:team.*"]
    store.set_role("packer", ["push:*"])
    assert list(map(str, store.grants_of(bob))) == ["push:team.*"]


def test_a_rotated_key_ends_at_the_latest_when_it_would_have_ended_anyway():
    clock = ManualClock()
    store = AccessStore(None, clock)
    old, _ = store.create_key("shop", ["push"], expires_seconds=HOUR)
    new, _ = store.rotate_key(old.id, 24 * HOUR, 2 * HOUR)

    assert store.document.keys[old.id].expires_at == old.expires_at
    assert new.expires_at == clock.now() + round(2 * HOUR * 1e6)


def test_deleting_somebody_ends_their_keys_and_nobody_elses(store):
    store.create_key("shop", ["push"])
    kept, _ = store.create_key("other", ["push"])
    store.create_key("shop", None)

    store.delete_user("shop")

    assert list(store.document.keys) == [kept.id]
    assert list(store.document.principals) == ["other"]


# The file.


DAMAGED = [b"", b"{", b"\xff\xfe", b"[]", b'{"version": "one"}', b'{"version": 1, "keys": 3}', b'{"principals": {}}']


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_file_that_cannot_be_read_is_refused_and_left_as_it_is(data, disk):
    filled(disk)
    disk.replace(FILE, data)

    with pytest.raises(Damaged, match=FILE):
        AccessStore(disk, ManualClock())

    assert disk.read(FILE) == data


def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(disk):
    filled(disk)
    data = disk.read(FILE).replace(b'"version": 1', b'"version": 2')
    assert VERSION == 1
    disk.replace(FILE, data)

    with pytest.raises(BadSettings, match="version 2"):
        AccessStore(disk, ManualClock())

    assert disk.read(FILE) == data


def test_a_key_of_nobody_is_damage(disk):
    store = filled(disk)
    orphans = msgspec.structs.replace(store.document, principals={})
    disk.replace(FILE, msgspec.json.encode(orphans))

    with pytest.raises(Damaged, match="shop"):
        AccessStore(disk, ManualClock())


def test_a_grant_in_the_file_that_means_nothing_is_damage(disk):
    filled(disk)
    disk.replace(FILE, disk.read(FILE).replace(b'"viewer"', b'"veiwer"'))

    with pytest.raises(Damaged, match="veiwer"):
        AccessStore(disk, ManualClock())


def test_the_file_is_its_owners_alone_and_has_no_secret(tmp_path):
    store = AccessStore(RealDisk(tmp_path), ManualClock())
    _, text = store.create_key("shop", ["push"])

    path = tmp_path / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert text.rpartition("_")[2].encode() not in path.read_bytes()


def test_without_a_disk_everything_is_in_memory():
    store = filled(None)

    assert store.grants_of(store.document.principals["ann"])[0].matches("orders")
    assert AccessStore(None, ManualClock()).document == Document()


def test_a_new_hash_replaces_only_the_one_that_it_was_made_from():
    store = AccessStore(None, ManualClock())
    store.set_user("ann", grants=["viewer"], password="old")

    store.rehash_password("ann", "old", "old, hashed better")
    assert store.document.principals["ann"].password == "old, hashed better"

    store.set_user("ann", password="new")
    store.rehash_password("ann", "old", "old, hashed best")
    store.rehash_password("bob", "", "anything")
    assert store.document.principals["ann"].password == "new"
    assert "bob" not in store.document.principals
