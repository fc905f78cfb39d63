"""Access control of an open Penstock (keys, users, roles and namespaces), and its audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.model_access import ApiKeyView, NamespaceView, NewKey, PrincipalView, RoleView, UserView
from penstock.model_audit import AuditRecord, AuditVerification
from penstock.operations.access import KEEP_SECONDS_DEFAULT, quotas_of


class Access:
    """Keys, users, roles and namespaces. All methods except `me` need the grant `operate:*`."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def me(self) -> PrincipalView:
        """Return who this client is and what it may do."""
        return await self._session.execute(ops.Me())

    # keys

    async def create_key(
        self,
        name: str,
        grants: Sequence[str] | None = None,
        *,
        namespace: str = "",
        expires_seconds: float | None = None,
        certificates: Sequence[str] | None = None,
    ) -> NewKey:
        """Create an API key for a principal. Returns the key, whose secret is shown only once.

        The principal is created with `grants` if it does not exist. Omit `grants` to give an existing principal
        another key.
        """
        return await self._session.execute(ops.CreateKey(name, grants, namespace, expires_seconds, certificates))

    async def keys(self) -> list[ApiKeyView]:
        """Return all keys, oldest first, without their secrets."""
        return await self._session.execute(ops.ListKeys())

    async def rotate_key(
        self, id: str, *, keep_seconds: float = KEEP_SECONDS_DEFAULT, expires_seconds: float | None = None
    ) -> NewKey:
        """Replace a key. Returns the new one; the old one stays valid for `keep_seconds`."""
        return await self._session.execute(ops.RotateKey(id, keep_seconds, expires_seconds))

    async def revoke_key(self, id: str) -> None:
        """Revoke a key immediately, and close the connections that use it."""
        await self._session.execute(ops.RevokeKey(id))

    # users

    async def set_user(
        self,
        name: str,
        *,
        grants: Sequence[str] | None = None,
        password: str | None = None,
        certificates: Sequence[str] | None = None,
        namespace: str | None = None,
    ) -> UserView:
        """Create or change a user. A new user needs grants. An empty password removes the password."""
        return await self._session.execute(ops.SetUser(name, grants, password, certificates, namespace))

    async def users(self) -> list[UserView]:
        """Return all users and other principals."""
        return await self._session.execute(ops.ListUsers())

    async def delete_user(self, name: str) -> None:
        """Delete a user and their keys, and close their connections."""
        await self._session.execute(ops.DeleteUser(name))

    # roles

    async def set_role(self, name: str, grants: Sequence[str]) -> RoleView:
        """Create or change a role. The change applies immediately to everyone who has it."""
        return await self._session.execute(ops.SetRole(name, grants))

    async def roles(self) -> list[RoleView]:
        """Return all roles, built-in ones first."""
        return await self._session.execute(ops.ListRoles())

    async def delete_role(self, name: str) -> None:
        """Delete a role. Nobody must have it."""
        await self._session.execute(ops.DeleteRole(name))

    # namespaces

    async def set_namespace(self, name: str, **quotas: float | None) -> NamespaceView:
        """Create a namespace or replace its quotas (docs/security.md). An omitted quota is unlimited."""
        return await self._session.execute(ops.SetNamespace(name, quotas_of(quotas)))

    async def namespaces(self) -> list[NamespaceView]:
        """Return all namespaces."""
        return await self._session.execute(ops.ListNamespaces())

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace. It must have no principals; its queues are kept."""
        await self._session.execute(ops.DeleteNamespace(name))


class Audit:
    """The audit log: who did what. Its records are in the queue `penstock.audit`."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def list(
        self,
        *,
        who: str | None = None,
        what: str | None = None,
        outcome: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[AuditRecord]:
        """Return records, newest first. `outcome` is `ok`, `failed` for any error, or an error code."""
        return await self._session.execute(ops.ListAudit(who, what, outcome, since, limit))

    async def verify(self) -> AuditVerification:
        """Verify the whole audit log. Changed, removed or moved records are listed in `problems`."""
        return await self._session.execute(ops.VerifyAudit())
