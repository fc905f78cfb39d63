"""Operations on access (keys, users, roles, namespaces), on data keys, and on the audit log.

A caller that may change keys, users or roles can become an owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from penstock import limits, refusals, validation
from penstock.errors import InvalidField, shown
from penstock.model import check_name, check_seconds
from penstock.model_access import ApiKeyView, NamespaceView, NewKey, PrincipalView, Quotas, RoleView, UserView
from penstock.model_audit import AuditRecord, AuditVerification
from penstock.operations.base import Action, Check, Operation, Repeat, operation
from penstock.operations.types import IN_QUEUE, Instant, Limit, QueueName
from penstock.refusals import suggestion
from penstock.replies import DataKeyView, QueueKeys

KEEP_SECONDS_DEFAULT: Final = 86_400.0
QUOTA_NAMES: Final = Quotas.__struct_fields__


def _texts(value: Any, field: str) -> list[str]:
    """A list of texts; a single text is a mistake that would be taken for its letters."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidField(f"{field}: {shown(value)} is not a list of strings")
    if len(value) > limits.grants_max:
        raise InvalidField(f"{field}: {len(value):,} are more than {limits.grants_max:,}")
    for text in value:
        if not isinstance(text, str) or not 0 < len(text) <= limits.grant_length_max:
            raise InvalidField(f"{field}: {shown(text)} is not text of 1 to {limits.grant_length_max} characters")
        validation.text(text, field)
    return list(value)


_KEY_ID: Final = re.compile(r"[0-9a-z]{1,32}")


def _lifetime(value: Any, field: str) -> float:
    seconds = check_seconds(value, field)
    if not seconds:
        raise InvalidField(f"{field}: the key would expire at once", hint="omit it for no expiry")
    return seconds


def _key_id(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _KEY_ID.fullmatch(value):
        raise InvalidField(f"{field}: {shown(value)} is not the id of a key", hint="`penstock key list` shows them")
    return value


def _password(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidField(f"{field}: it is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidField(f"{field}: it is not valid text") from None
    return value


def quotas_of(values: Mapping[str, Any]) -> Quotas:
    """Quotas by their names; raises `InvalidField` on a name that is none and on a value that is no number."""
    for name in values:
        if name not in QUOTA_NAMES:
            raise InvalidField(f"{name!r} is not a quota", hint=suggestion(name, QUOTA_NAMES))
    return refusals.converted(values, Quotas, whole="quotas")


def _quotas(value: Any, field: str) -> Quotas:
    for name in QUOTA_NAMES:
        quota = getattr(value, name)
        if quota is not None and (isinstance(quota, bool) or not 0 <= quota <= limits.quota_max):
            raise InvalidField(f"{name}: {refusals.number(quota)} is not a number from 0 to {limits.quota_max:,}")
    return value  # type: ignore[no-any-return]


Name = Annotated[str, Check(check_name)]
NamespaceName = Annotated[str, Check(lambda value, field: "" if value == "" else check_name(value, field))]
Texts = Annotated[Sequence[str], Check(_texts)]
Lifetime = Annotated[float, Check(_lifetime)]
KeyId = Annotated[str, Check(_key_id)]
Password = Annotated[str, Check(_password)]

CHANGING: Final = ("invalid_field", "invalid_name", "access_not_found")


# keys


@operation(
    Action.OPERATE,
    http="POST /keys",
    errors=CHANGING,
    status=201,
    repeat=Repeat.NEVER,
    example={"name": "shop", "grants": ["producer:orders"], "expires_ms": 2_592_000_000},
)
class CreateKey(Operation[NewKey], frozen=True):
    """Create an API key. The reply is the only place that shows it.

    `name` is the principal that the key belongs to. If the principal does not exist, it is created with these `grants`.
    If it exists, it gets another key, and `grants` must be omitted. `certificates` are names in client certificates
    that also identify the principal.
    """

    name: Name
    grants: Texts | None = None
    namespace: NamespaceName = ""
    expires_seconds: Lifetime | None = None
    certificates: Texts | None = None


@operation(Action.OPERATE, http="GET /keys", reply="keys")
class ListKeys(Operation[list[ApiKeyView]], frozen=True):
    """List the API keys, oldest first, without their secrets."""


@operation(
    Action.OPERATE,
    http="POST /keys/{key_id}/rotate",
    errors=CHANGING,
    status=201,
    repeat=Repeat.NEVER,
    example={"keep_ms": 3_600_000},
)
class RotateKey(Operation[NewKey], frozen=True):
    """Replace a key with a new one. The old key stays valid for `keep_seconds`, by default one day."""

    key_id: KeyId
    keep_seconds: Annotated[float, Check(check_seconds)] = KEEP_SECONDS_DEFAULT
    expires_seconds: Lifetime | None = None


@operation(Action.OPERATE, http="DELETE /keys/{key_id}", errors=CHANGING, repeat=Repeat.NEVER)
class RevokeKey(Operation[None], frozen=True):
    """Revoke a key immediately and close the connections that use it."""

    key_id: KeyId


# users


@operation(
    Action.OPERATE,
    http="PUT /users/{name}",
    errors=CHANGING,
    example={"grants": ["operator:shop.*"], "password": "correct horse battery"},
)
class SetUser(Operation[UserView], frozen=True):
    """Create a user, or change the given fields of an existing user.

    A new user needs `grants`. The `password` is for the dashboard; an empty password removes it.
    """

    name: Name
    grants: Texts | None = None
    password: Password | None = None
    certificates: Texts | None = None
    namespace: NamespaceName | None = None

    def __repr__(self) -> str:
        return f"SetUser(name={self.name!r}, grants={self.grants!r})"


@operation(Action.OPERATE, http="GET /users", reply="users")
class ListUsers(Operation[list[UserView]], frozen=True):
    """List all users and other principals."""


@operation(Action.OPERATE, http="DELETE /users/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteUser(Operation[None], frozen=True):
    """Delete a user and their keys, and close their connections."""

    name: Name


# roles


@operation(
    Action.OPERATE,
    http="PUT /roles/{name}",
    errors=CHANGING,
    example={"grants": ["push:orders", "monitor:shop.*"]},
)
class SetRole(Operation[RoleView], frozen=True):
    """Create or change a role. The change applies immediately to everyone who has the role."""

    name: Name
    grants: Texts


@operation(Action.OPERATE, http="GET /roles", reply="roles")
class ListRoles(Operation[list[RoleView]], frozen=True):
    """List the roles, built-in roles first."""


@operation(Action.OPERATE, http="DELETE /roles/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteRole(Operation[None], frozen=True):
    """Delete a role. Nobody must have it."""

    name: Name


# namespaces


@operation(
    Action.OPERATE,
    http="PUT /namespaces/{name}",
    errors=CHANGING,
    example={"queues": 100, "bytes": 10_737_418_240, "messages_rate": 5000},
)
class SetNamespace(Operation[NamespaceView], frozen=True):
    """Create a namespace or replace its quotas. A quota that is omitted is unlimited."""

    name: Name
    quotas: Annotated[Quotas, Check(_quotas)] = Quotas()


@operation(Action.OPERATE, http="GET /namespaces", reply="namespaces")
class ListNamespaces(Operation[list[NamespaceView]], frozen=True):
    """List the namespaces."""


@operation(Action.OPERATE, http="DELETE /namespaces/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteNamespace(Operation[None], frozen=True):
    """Delete a namespace. It must have no principals; its queues are kept."""

    name: Name


@operation(Action.MONITOR, http="GET /me", route="get_me", errors=("not_authenticated",), queues=())
class Me(Operation[PrincipalView], frozen=True):
    """Get the authenticated principal and its grants.

    Every principal may call this. It does not access any queue.
    """


# data keys of encrypted queues

IN_ENCRYPTED: Final = (*IN_QUEUE, "invalid_field")


@operation(Action.READ)
class GetDataKeys(Operation[QueueKeys], frozen=True):
    """Get the data keys of a queue and of its dead letters, to read stored files.

    A principal that may read a queue may also decrypt it.
    """

    queue: QueueName


@operation(Action.MONITOR, http="GET /encryption", route="list_data_keys", reply="keys", queues=())
class ListDataKeys(Operation[list[DataKeyView]], frozen=True):
    """List the data keys of all encrypted queues, without the key material."""

    def visible(self, reply: list[DataKeyView], may: Callable[[str], bool]) -> list[DataKeyView]:
        return [key for key in reply if may(key.queue)]


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/encryption/rotate",
    route="rotate_data_key",
    reply="key",
    repeat=Repeat.NEVER,
    errors=IN_ENCRYPTED,
)
class RotateDataKey(Operation[str], frozen=True):
    """Create a new data key for a queue and encrypt with it from now on. Returns its id."""

    queue: QueueName


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/encryption/erase",
    route="erase_data_keys",
    reply="erased",
    repeat=Repeat.NEVER,
    errors=IN_ENCRYPTED,
    example={"confirm": "orders"},
)
class EraseDataKeys(Operation[int], frozen=True):
    """Erase the data keys of a queue and of its dead letters. Returns the number of erased keys.

    Everything that was encrypted with these keys becomes unreadable, permanently. `confirm` must repeat the name of the
    queue. With `before`, only keys that were replaced by a newer key before that time are erased.
    """

    queue: QueueName
    confirm: str
    before: Instant | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confirm != self.queue:
            raise InvalidField("confirm: repeat the name of the queue whose messages will become unreadable")


@operation(
    Action.OPERATE,
    http="POST /encryption/rewrap",
    route="rewrap_data_keys",
    reply="rewrapped",
    repeat=Repeat.NEVER,
    errors=("invalid_field", "bad_settings"),
    example={"master_key": "/etc/penstock/new-master.key"},
)
class RewrapDataKeys(Operation[int], frozen=True):
    """Encrypt all data keys with another master key. Returns the number of rewrapped keys.

    `master_key` is the path of a key file on the broker's machine. The data itself does not change. Before the broker
    restarts, set `master_key` in its settings to the new file.
    """

    master_key: str = msgspec.field()


# the audit log


@operation(
    Action.OPERATE,
    http="GET /audit",
    route="list_audit",
    reply="records",
    errors=("invalid_field",),
    example={"who": "ann", "outcome": "failed", "limit": 20},
)
class ListAudit(Operation[list[AuditRecord]], frozen=True):
    """List records of the audit log, newest first.

    `outcome` is `ok`, `failed` for any error, or an error code.
    """

    who: str | None = None
    what: str | None = None
    outcome: str | None = None
    since: Instant | None = None
    limit: Limit = 100


@operation(Action.OPERATE, http="GET /audit/verify", route="get_audit_verification")
class VerifyAudit(Operation[AuditVerification], frozen=True):
    """Verify the hash chain of the whole audit log.

    `problems` lists records that were changed, removed or moved.
    """
