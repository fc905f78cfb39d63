"""Keys, users, roles and namespaces, by every way in."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.access.grants import ROLES
from penstock.access.keys import digest_of, is_key, key_id
from penstock.access.passwords import verify_password
from penstock.errors import AccessNotFound, InvalidField, InvalidName
from penstock.operations import Repeat

HOUR = 3600
PASSWORD = "correct horse battery"


def test_a_key_is_shown_once_and_only_its_digest_is_stored(ps, way):
    made = ps.access.create_key("shop", ["producer:orders"], expires_seconds=HOUR)

    assert key_id(made.key) == made.id
    assert (made.name, made.grants, made.namespace) == ("shop", ["producer:orders"], "")
    assert made.key not in repr(made)
    record = way.session.access.document.keys[made.id]
    assert is_key(made.key, record.digest)
    (listed,) = ps.access.keys()
    assert (listed.id, listed.name, listed.expires_at) == (made.id, "shop", made.expires_at)
    assert (listed.expires_at - listed.created_at).total_seconds() == HOUR
    assert digest_of(made.key) not in repr(listed)


def test_a_principal_that_exists_gets_another_key_with_the_same_grants(ps):
    ps.access.create_key("shop", ["producer:orders"])

    assert ps.access.create_key("shop").grants == ["producer:orders"]
    with pytest.raises(InvalidField, match="exists with other grants"):
        ps.access.create_key("shop", ["owner"])
    assert len(ps.access.keys()) == 2


def test_a_rotated_key_still_counts_for_a_while_and_a_revoked_one_is_gone(ps):
    old = ps.access.create_key("shop", ["producer"])
    new = ps.access.rotate_key(old.id, keep_seconds=HOUR)

    kept, replaced = sorted(ps.access.keys(), key=lambda key: key.id != old.id)
    assert replaced.id == new.id
    assert replaced.expires_at is None
    assert kept.expires_at is not None
    ps.access.revoke_key(old.id)
    (left,) = ps.access.keys()
    assert left.id == new.id
    for call in (ps.access.revoke_key, ps.access.rotate_key):
        with pytest.raises(AccessNotFound, match=old.id):
            call(old.id)


def test_a_user_is_created_changed_and_deleted_with_its_keys(ps, way):
    ann = ps.access.set_user("ann", grants=["viewer"], password=PASSWORD, certificates=["ann.example.org"])
    assert (ann.has_password, ann.certificates, ann.keys) == (True, ["ann.example.org"], 0)
    stored = way.session.access.document.principals["ann"].password
    assert verify_password(PASSWORD, stored).is_right

    ps.access.create_key("ann")
    changed = ps.access.set_user("ann", grants=["operator:shop.*"])
    assert (changed.grants, changed.has_password, changed.keys) == (["operator:shop.*"], True, 1)
    assert not ps.access.set_user("ann", password="").has_password

    ps.access.delete_user("ann")
    assert (ps.access.users(), ps.access.keys()) == ([], [])
    with pytest.raises(AccessNotFound, match="ann"):
        ps.access.delete_user("ann")


def test_roles_are_listed_with_the_built_in_ones_and_one_in_use_stays(ps):
    ps.access.set_role("packer", ["consume:orders", "push:parcels"])
    ps.access.set_user("bob", grants=["packer"])

    listed = ps.access.roles()
    assert [role.name for role in listed] == [*ROLES, "packer"]
    assert [role.is_built_in for role in listed] == [True] * len(ROLES) + [False]
    with pytest.raises(InvalidField, match="is granted to 'bob'"):
        ps.access.delete_role("packer")
    ps.access.delete_user("bob")
    ps.access.delete_role("packer")
    assert len(ps.access.roles()) == len(ROLES)


def test_a_namespace_has_quotas_and_members(ps):
    made = ps.access.set_namespace("team-a", queues=10, messages_rate=2.5)
    assert (made.prefix, made.quotas.queues, made.quotas.messages_rate, made.quotas.bytes) == ("team-a.", 10, 2.5, None)
    ps.access.create_key("worker-a", ["consumer"], namespace="team-a")

    assert [(each.name, each.users) for each in ps.access.namespaces()] == [("team-a", 1)]
    with pytest.raises(InvalidField, match="worker-a"):
        ps.access.delete_namespace("team-a")
    ps.access.delete_user("worker-a")
    ps.access.delete_namespace("team-a")
    assert ps.access.namespaces() == []


def test_everybody_may_know_who_they_are(ps):
    me = ps.access.me()

    assert me.name == "local"
    assert "operate:*" in me.grants


@pytest.mark.parametrize(
    ("call", "arguments", "error", "text"),
    [
        ("create_key", {"name": "shop"}, InvalidField, "needs grants"),
        ("create_key", {"name": "a b", "grants": ["push:*"]}, InvalidName, "a b"),
        ("create_key", {"name": "owner", "grants": ["push:*"]}, InvalidField, "reserved"),
        ("create_key", {"name": "penstock.x", "grants": ["push:*"]}, InvalidField, "reserved"),
        ("create_key", {"name": "shop", "grants": "push:*"}, InvalidField, "not a list"),
        ("create_key", {"name": "shop", "grants": ["prodcer"]}, InvalidField, "did you mean 'producer'"),
        ("create_key", {"name": "shop", "grants": ["push:a*b"]}, InvalidField, "not a pattern"),
        ("create_key", {"name": "shop", "grants": ["operate:orders"]}, InvalidField, "as a whole"),
        ("create_key", {"name": "shop", "grants": ["push"], "namespace": "no"}, AccessNotFound, "no namespace 'no'"),
        ("create_key", {"name": "shop", "grants": ["push"], "expires_seconds": 0}, InvalidField, "at once"),
        ("create_key", {"name": "shop", "grants": ["push"], "expires_seconds": -1}, InvalidField, "expires_"),
        ("set_user", {"name": "ann"}, InvalidField, "needs grants"),
        ("set_user", {"name": "ann", "grants": ["viewer"], "password": "short"}, InvalidField, "shorter"),
        ("set_role", {"name": "owner", "grants": ["push:*"]}, InvalidField, "built in"),
        ("set_role", {"name": "own", "grants": ["nothing"]}, InvalidField, "not an action or a role"),
        ("set_namespace", {"name": "a.b"}, InvalidField, "is not a valid name"),
        ("set_namespace", {"name": "a", "quees": 1}, InvalidField, "quees"),
        ("set_namespace", {"name": "a", "queues": -1}, InvalidField, "queues"),
        ("delete_role", {"name": "viewer"}, AccessNotFound, "viewer"),
        ("delete_namespace", {"name": "a"}, AccessNotFound, "no namespace"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_changed(ps, way, call, arguments, error, text):
    before = way.session.access.document
    with pytest.raises(error, match=text):
        getattr(ps.access, call)(**arguments)
    assert way.session.access.document is before


def test_changes_of_access_are_in_the_audit_log_without_secrets(ps, way):
    way.session.audit.is_on = True
    made = ps.access.create_key("shop", ["producer"])
    ps.access.set_user("ann", grants=["viewer"], password=PASSWORD)
    ps.access.revoke_key(made.id)

    records = [record for record in ps.audit.list() if record.what.endswith(("_key", "_user"))]
    assert [record.what for record in records] == ["revoke_key", "set_user", "create_key"]
    assert records[0].arguments["key_id"] == made.id
    assert made.key not in repr(records)
    assert PASSWORD not in repr(records)


def test_a_request_whose_reply_has_a_secret_is_not_repeated():
    assert {ops.CreateKey.spec.repeat, ops.RotateKey.spec.repeat} == {Repeat.NEVER}
    assert PASSWORD not in repr(ops.SetUser("ann", ["viewer"], PASSWORD))
