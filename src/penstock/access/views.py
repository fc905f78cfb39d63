"""What is in the access store, as it is shown: without secrets and their digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.access.grants import ROLES, Principal
from penstock.access.store import AccessStore, KeyRecord, PrincipalRecord
from penstock.model import to_datetime
from penstock.model_access import ApiKeyView, NamespaceView, NewKey, PrincipalView, RoleView, Usage, UserView


def new_key(store: AccessStore, record: KeyRecord, text: str) -> NewKey:
    """A key that was just made, with its secret."""
    return NewKey(key=text, **_key(store, record))


def keys(store: AccessStore) -> list[ApiKeyView]:
    """All keys, oldest first."""
    records = sorted(store.document.keys.values(), key=lambda key: (key.created_at, key.id))
    return [ApiKeyView(created_at=to_datetime(record.created_at), **_key(store, record)) for record in records]


def _key(store: AccessStore, record: KeyRecord) -> dict[str, Any]:
    owner = store.document.principals[record.principal]
    expires_at = None if record.expires_at is None else to_datetime(record.expires_at)
    about = {"name": owner.name, "namespace": owner.namespace, "grants": owner.grants}
    return {"id": record.id, **about, "expires_at": expires_at}


def user(store: AccessStore, record: PrincipalRecord) -> UserView:
    """A user or another principal."""
    return UserView(
        name=record.name,
        namespace=record.namespace,
        grants=record.grants,
        has_password=bool(record.password),
        certificates=record.certificates,
        keys=sum(key.principal == record.name for key in store.document.keys.values()),
        created_at=to_datetime(record.created_at),
    )


def users(store: AccessStore) -> list[UserView]:
    """All users and other principals, by name."""
    return [user(store, record) for _, record in sorted(store.document.principals.items())]


def role(name: str, grants: Iterable[str]) -> RoleView:
    """A role."""
    return RoleView(name=name, grants=list(grants), is_built_in=name in ROLES)


def roles(store: AccessStore) -> list[RoleView]:
    """All roles: the built-in ones from the least to the most, then those of the store by name."""
    own = sorted(store.document.roles.items())
    return [role(name, grants) for name, grants in (*ROLES.items(), *own)]


def namespace(store: AccessStore, name: str, usage: Mapping[str, Usage]) -> NamespaceView:
    """A namespace."""
    document = store.document
    record = document.namespaces[name]
    members = sum(principal.namespace == name for principal in document.principals.values())
    return NamespaceView(
        name=name, prefix=record.prefix, quotas=record.quotas, usage=usage.get(name, Usage()), users=members
    )


def namespaces(store: AccessStore, usage: Mapping[str, Usage]) -> list[NamespaceView]:
    """All namespaces, by name."""
    return [namespace(store, name, usage) for name in sorted(store.document.namespaces)]


def principal(who: Principal) -> PrincipalView:
    """Somebody who was authenticated."""
    return PrincipalView(name=who.name, namespace=who.namespace, grants=[str(grant) for grant in who.grants])
