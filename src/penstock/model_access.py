"""Keys, users, roles and namespaces as they are shown, and the quotas of a namespace."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a namespace; None means unlimited. Rates are per second."""

    queues: int | None = None
    groups: int | None = None
    bytes: int | None = None
    messages_rate: float | None = None
    bytes_rate: float | None = None
    connections: int | None = None
    staged_bytes: int | None = None


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret. `name` is the principal that it belongs to."""

    id: str
    name: str
    namespace: str = ""
    grants: list[str] = []
    created_at: datetime
    expires_at: datetime | None = None


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new API key. `key` is shown only once: the broker stores only its digest."""

    id: str
    name: str
    key: str
    namespace: str = ""
    grants: list[str] = []
    expires_at: datetime | None = None

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r}, name={self.name!r})"


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A principal (a person or a program), and how it can authenticate."""

    name: str
    namespace: str = ""
    grants: list[str] = []
    has_password: bool = False
    certificates: list[str] = []  # names in client certificates that stand for it
    keys: int = 0
    created_at: datetime


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """A named list of grants."""

    name: str
    grants: list[str]
    is_built_in: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The current usage of a namespace, with the names of its quotas.

    A rate shows how much of one second's quota is used. It is None if there is no such quota.
    """

    queues: int = 0
    groups: int = 0
    bytes: int = 0
    messages_rate: int | None = None
    bytes_rate: int | None = None
    connections: int = 0
    staged_bytes: int = 0


class NamespaceView(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace: all queues whose names begin with its prefix."""

    name: str
    prefix: str
    quotas: Quotas = Quotas()
    usage: Usage = Usage()
    users: int = 0


class PrincipalView(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated principal and its grants. Roles are expanded to grants."""

    name: str
    namespace: str = ""
    grants: list[str] = []
