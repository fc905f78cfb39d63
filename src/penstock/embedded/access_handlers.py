"""Handlers of the operations on keys, users, roles and namespaces.

The access store makes its file durable before it returns, so there is no ticket to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from penstock import operations as ops
from penstock.access import views
from penstock.access.grants import LOCAL
from penstock.access.passwords import hash_password
from penstock.embedded.handler_table import Reply, handles

if TYPE_CHECKING:
    from penstock.embedded.session import Session


@handles(ops.CreateKey)
def _create_key(session: Session, operation: ops.CreateKey, client: str) -> Reply:
    return views.new_key(session.access, *session.access.create_key(**structs.asdict(operation))), 0


@handles(ops.ListKeys)
def _list_keys(session: Session, operation: ops.ListKeys, client: str) -> Reply:
    return views.keys(session.access), 0


@handles(ops.RotateKey)
def _rotate_key(session: Session, operation: ops.RotateKey, client: str) -> Reply:
    made = session.access.rotate_key(operation.key_id, operation.keep_seconds, operation.expires_seconds)
    return views.new_key(session.access, *made), 0


@handles(ops.RevokeKey)
def _revoke_key(session: Session, operation: ops.RevokeKey, client: str) -> Reply:
    session.access.revoke_key(operation.key_id)
    return None, 0


@handles(ops.SetUser)
def _set_user(session: Session, operation: ops.SetUser, client: str) -> Reply:
    changes = structs.asdict(operation)
    if operation.password:  # an empty one removes it
        changes["password"] = hash_password(operation.password)
    return views.user(session.access, session.access.set_user(**changes)), 0


@handles(ops.ListUsers)
def _list_users(session: Session, operation: ops.ListUsers, client: str) -> Reply:
    return views.users(session.access), 0


@handles(ops.DeleteUser)
def _delete_user(session: Session, operation: ops.DeleteUser, client: str) -> Reply:
    session.access.delete_user(operation.name)
    return None, 0


@handles(ops.SetRole)
def _set_role(session: Session, operation: ops.SetRole, client: str) -> Reply:
    session.access.set_role(operation.name, operation.grants)
    return views.role(operation.name, operation.grants), 0


@handles(ops.ListRoles)
def _list_roles(session: Session, operation: ops.ListRoles, client: str) -> Reply:
    return views.roles(session.access), 0


@handles(ops.DeleteRole)
def _delete_role(session: Session, operation: ops.DeleteRole, client: str) -> Reply:
    session.access.delete_role(operation.name)
    return None, 0


@handles(ops.SetNamespace)
def _set_namespace(session: Session, operation: ops.SetNamespace, client: str) -> Reply:
    session.access.set_namespace(operation.name, operation.quotas)
    return views.namespace(session.access, operation.name, session.usage()), 0


@handles(ops.ListNamespaces)
def _list_namespaces(session: Session, operation: ops.ListNamespaces, client: str) -> Reply:
    return views.namespaces(session.access, session.usage()), 0


@handles(ops.DeleteNamespace)
def _delete_namespace(session: Session, operation: ops.DeleteNamespace, client: str) -> Reply:
    session.access.delete_namespace(operation.name)
    return None, 0


@handles(ops.Me)
def _me(session: Session, operation: ops.Me, client: str) -> Reply:
    return views.principal(LOCAL), 0  # a broker knows who its client is, and answers itself
