"""Operations on who may do what (keys, users, roles, namespaces), on data keys, and on the audit log.

Whoever may change keys, users or roles may become an owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from penstock import limits, refusals
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
    return value


def quotas_of(values: Mapping[str, Any]) -> Quotas:
    """Quotas by their names; raises `InvalidField` on a name that is none and on a value that is no number."""
    for name in values:
        if name not in QUOTA_NAMES:
            raise InvalidField(f"{name!r} is not a quota", hint=suggestion(name, QUOTA_NAMES))
    try:
        return msgspec.convert(dict(values), Quotas)
    except msgspec.ValidationError as error:
        raise refusals.refusal(error, Quotas, dict(values), whole="quotas") from None


def _quotas(value: Any, field: str) -> Quotas:
    for name in QUOTA_NAMES:
        quota = getattr(value, name)
        if quota is not None and (isinstance(quota, bool) or not 0 <= quota <= limits.quota_max):
            raise InvalidField(f"{name}: {shown(quota)} is not a number from 0 to {limits.quota_max:,}")
    return value  # type: ignore[no-any-return]


Name = Annotated[str, Check(check_name)]
NamespaceName = Annotated[str, Check(lambda value, field: value and check_name(value, field))]
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
    """Create an API key; the reply is the only place where it is shown.

    `name` is the principal whose key it is. One that does not exist is created with these grants; one that exists gets
    another key, and grants are left out. `certificates` are names in client certificates that stand for it too.
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
    """Create a key in place of another, which still counts for a while: a day, unless `keep_seconds` is given."""

    key_id: KeyId
    keep_seconds: Annotated[float, Check(check_seconds)] = KEEP_SECONDS_DEFAULT
    expires_seconds: Lifetime | None = None


@operation(Action.OPERATE, http="DELETE /keys/{key_id}", errors=CHANGING, repeat=Repeat.NEVER)
class RevokeKey(Operation[None], frozen=True):
    """End a key now; connections that were made with it are closed."""

    key_id: KeyId


# users


@operation(
    Action.OPERATE,
    http="PUT /users/{name}",
    errors=CHANGING,
    example={"grants": ["operator:shop.*"], "password": "correct horse battery"},
)
class SetUser(Operation[UserView], frozen=True):
    """Create a user, or change what is given; a new one needs grants.

    A password is for signing in to the dashboard; empty removes it.
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
    """List the users and other principals."""


@operation(Action.OPERATE, http="DELETE /users/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteUser(Operation[None], frozen=True):
    """Delete a user with its keys; its connections are closed."""

    name: Name


# roles


@operation(
    Action.OPERATE,
    http="PUT /roles/{name}",
    errors=CHANGING,
    example={"grants": ["push:orders", "monitor:shop.*"]},
)
class SetRole(Operation[RoleView], frozen=True):
    """Create a role, or change it; whoever has it has the new grants at once."""

    name: Name
    grants: Texts


@operation(Action.OPERATE, http="GET /roles", reply="roles")
class ListRoles(Operation[list[RoleView]], frozen=True):
    """List the roles, the built-in ones first."""


@operation(Action.OPERATE, http="DELETE /roles/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteRole(Operation[None], frozen=True):
    """Delete a role that nobody has."""

    name: Name


# namespaces


@operation(
    Action.OPERATE,
    http="PUT /namespaces/{name}",
    errors=CHANGING,
    example={"queues": 100, "bytes": 10_737_418_240, "messages_rate": 5000},
)
class SetNamespace(Operation[NamespaceView], frozen=True):
    """Declare a namespace, or replace its quotas; a quota that is left out is no limit."""

    name: Name
    quotas: Annotated[Quotas, Check(_quotas)] = Quotas()


@operation(Action.OPERATE, http="GET /namespaces", reply="namespaces")
class ListNamespaces(Operation[list[NamespaceView]], frozen=True):
    """List the namespaces."""


@operation(Action.OPERATE, http="DELETE /namespaces/{name}", errors=CHANGING, repeat=Repeat.NEVER)
class DeleteNamespace(Operation[None], frozen=True):
    """Delete a namespace that nobody belongs to; its queues stay."""

    name: Name


@operation(Action.MONITOR, http="GET /me", route="get_me", errors=("not_authenticated",), queues=())
class Me(Operation[PrincipalView], frozen=True):
    """Who asks, and what they may do.

    Everybody may know this of themselves: it touches no queue.
    """


# data keys of encrypted queues

IN_ENCRYPTED: Final = (*IN_QUEUE, "invalid_field")


@operation(Action.READ)
class GetDataKeys(Operation[QueueKeys], frozen=True):
    """The data keys of a queue and of its dead letters, for readers of stored files: whoever may read may decrypt."""

    queue: QueueName


@operation(Action.MONITOR, http="GET /encryption", route="list_data_keys", reply="keys", queues=())
class ListDataKeys(Operation[list[DataKeyView]], frozen=True):
    """The data keys of all encrypted queues, without the keys themselves."""

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
    """Encrypt with a new data key from now on; its id."""

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
    """Erase the data keys of a queue and of its dead letters: what they encrypted is lost for good; how many.

    `confirm` repeats the name of the queue. With `before`, keys that were followed by another by then.
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
    """Wrap all data keys with another master key, from a key file on the broker's machine; how many.

    No data is touched. The setting `master_key` must name the new file when the broker starts again.
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
    """Records of the audit log, newest first.

    `outcome` is `ok`, `failed` for every error, or the code of one; `since` is a time.
    """

    who: str | None = None
    what: str | None = None
    outcome: str | None = None
    since: Instant | None = None
    limit: Limit = 100


@operation(Action.OPERATE, http="GET /audit/verify", route="get_audit_verification")
class VerifyAudit(Operation[AuditVerification], frozen=True):
    """Check the chain of the whole audit log.

    A record that was changed, removed or moved is named among the `problems`.
    """
