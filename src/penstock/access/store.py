"""The access store: principals, API keys, roles and namespaces of a data directory, in `access/access.json`.

It is one small document. Every change makes a new one, which replaces the file atomically; then whoever listens is
notified. A file that cannot be read is refused and left as it is: to go on without it would lock everybody out, or
worse, let them in.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock.access.grants import LOCAL, NOBODY, ROLES, Grant, parse_grants
from penstock.access.keys import make_key
from penstock.clock import Clock
from penstock.errors import AccessNotFound, BadSettings, Damaged, InvalidField, PenstockError
from penstock.model import ACCESS_DIRECTORY, RESERVED_PREFIX, check_name
from penstock.model_access import Quotas
from penstock.storage.disk import Disk

DIRECTORY: Final = ACCESS_DIRECTORY
FILE: Final = "access/access.json"
VERSION: Final = 1
MICROS: Final = 1_000_000
PARSED_MAX: Final = 10_000
# Who connects with the key of a run, who is in the broker's process, and who has not said who they are.
RESERVED_NAMES: Final = frozenset({"owner", LOCAL.name, NOBODY.name})


class PrincipalRecord(msgspec.Struct, frozen=True):
    """A principal, and how it is proved beside its keys."""

    name: str
    grants: list[str]
    namespace: str = ""
    password: str = ""  # the argon2id hash of a user's
    certificates: list[str] = []  # names in client certificates that stand for it
    created_at: int = 0  # µs, as all instants here


class KeyRecord(msgspec.Struct, frozen=True):
    """An API key of a principal; the key itself is not stored."""

    id: str
    digest: str
    principal: str
    created_at: int
    expires_at: int | None = None


class NamespaceRecord(msgspec.Struct, frozen=True):
    """A namespace: all queues whose names begin with its name and a dot."""

    name: str
    quotas: Quotas = Quotas()

    @property
    def prefix(self) -> str:
        return f"{self.name}."


class Document(msgspec.Struct, frozen=True):
    """Everything in the store."""

    version: int = VERSION
    principals: dict[str, PrincipalRecord] = {}
    keys: dict[str, KeyRecord] = {}
    roles: dict[str, list[str]] = {}
    namespaces: dict[str, NamespaceRecord] = {}


class AccessStore:
    """Reads and changes the document. `disk` None keeps it in memory. Safe to use from several threads."""

    def __init__(self, disk: Disk | None, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self.document = _load(disk)
        # Grants by their texts, for these roles: every credential that is live is looked up after every change.
        self._parsed: tuple[dict[str, list[str]], dict[tuple[str, ...], tuple[Grant, ...]]] = ({}, {})
        self.on_change: list[Callable[[], object]] = []  # called by the thread that made the change
        # Called with what is about to change, before it does: the audit makes it durable first.
        self.before_change: Callable[[str, str], object] = lambda what, target: None

    def reload(self) -> None:
        """Read the document again, in case another node has changed it; whoever listens is notified then."""
        with self._lock:
            document = _load(self._disk)
            if document == self.document:
                return
            self.document = document
        self._changed()

    # reading

    def roles(self) -> Mapping[str, Iterable[str]]:
        """All roles: the built-in ones and those of this store."""
        return {**ROLES, **self.document.roles}

    def grants_of(self, record: PrincipalRecord) -> tuple[Grant, ...]:
        """What a principal may do now, by its roles as they are now."""
        roles, parsed = self._parsed
        if roles is not self.document.roles:
            roles, parsed = self._parsed = self.document.roles, {}
        key = (*record.grants, record.namespace)
        grants = parsed.get(key)
        if grants is None:
            if len(parsed) >= PARSED_MAX:
                parsed.clear()
            grants = parsed[key] = parse_grants(record.grants, {**ROLES, **roles}, _prefix(record.namespace))
        return grants

    def namespace_of(self, queue: str) -> NamespaceRecord | None:
        """The namespace that a queue belongs to."""
        return self.document.namespaces.get(queue.partition(".")[0]) if "." in queue else None

    def connections_max(self, namespace: str) -> int | None:
        """How many connections a namespace may have; None is no limit."""
        record = self.document.namespaces.get(namespace)
        return None if record is None else record.quotas.connections

    def principal_of_certificate(self, names: Iterable[str]) -> PrincipalRecord | None:
        """The principal for whom one of these names of a client certificate stands."""
        wanted = set(names)
        records = self.document.principals.values()
        return next((record for record in records if wanted.intersection(record.certificates)), None)

    # keys

    def create_key(
        self,
        name: str,
        grants: Iterable[str] | None,
        namespace: str = "",
        expires_seconds: float | None = None,
        certificates: Iterable[str] | None = None,
    ) -> tuple[KeyRecord, str]:
        """A new key of a principal, which is created with these grants if it does not exist; the record and the key.

        Grants of a principal that exists are left alone when none are given, and must be the same otherwise.
        `certificates` are added to its own.
        """
        with self._lock:
            principal = self._principal_with(name, grants, namespace)
            if certificates is not None:
                names = dict.fromkeys((*principal.certificates, *certificates))
                principal = msgspec.structs.replace(principal, certificates=list(names))
                self._require_unused_certificates(principal)
            principals = {**self.document.principals, name: principal}
            new = make_key()
            now = self._clock.now()
            record = KeyRecord(new.id, new.digest, name, now, _expiry(now, expires_seconds))
            keys = {**self.document.keys, new.id: record}
            self._replace("create_key", new.id, principals=principals, keys=keys)
        self._changed()
        return record, new.text

    def _principal_with(self, name: str, grants: Iterable[str] | None, namespace: str) -> PrincipalRecord:
        known = self.document.principals.get(name)
        if known is None:
            if grants is None:
                raise InvalidField(f"grants: principal {name!r} does not exist yet and needs grants", hint=_GRANTS)
            return self._new_principal(name, grants, namespace)
        wanted = known.grants if grants is None else list(grants)
        if set(wanted) != set(known.grants) or namespace not in ("", known.namespace):
            raise InvalidField(
                f"grants: {name!r} exists with other grants: {', '.join(known.grants)}",
                hint="leave the grants out to add a key, or change them with `penstock user update`",
            )
        return known

    def _new_principal(self, name: str, grants: Iterable[str], namespace: str) -> PrincipalRecord:
        check_name(name, "principal")
        if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX):
            raise InvalidField(f"principal: the name {name!r} is reserved", hint="choose another name")
        self._require_namespace(namespace)
        record = PrincipalRecord(name, list(grants), namespace, created_at=self._clock.now())
        self.grants_of(record)  # refuses what does not parse
        return record

    def rotate_key(self, id: str, keep_seconds: float, expires_seconds: float | None = None) -> tuple[KeyRecord, str]:
        """A new key in place of another, which still counts for `keep_seconds`."""
        with self._lock:
            old = self._key(id)
            now = self._clock.now()
            until = now + round(keep_seconds * MICROS)
            until = until if old.expires_at is None else min(until, old.expires_at)
            kept = msgspec.structs.replace(old, expires_at=until)
            new = make_key()
            record = KeyRecord(new.id, new.digest, old.principal, now, _expiry(now, expires_seconds))
            self._replace("rotate_key", id, keys={**self.document.keys, id: kept, new.id: record})
        self._changed()
        return record, new.text

    def revoke_key(self, id: str) -> None:
        """End a key at once."""
        with self._lock:
            self._key(id)
            keys = {known: record for known, record in self.document.keys.items() if known != id}
            self._replace("revoke_key", id, keys=keys)
        self._changed()

    def _key(self, id: str) -> KeyRecord:
        record = self.document.keys.get(id)
        if record is None:
            raise AccessNotFound(f"there is no key {id!r}", hint="`penstock key list` shows their ids")
        return record

    # principals

    def set_user(
        self,
        name: str,
        *,
        grants: Iterable[str] | None = None,
        password: str | None = None,
        certificates: Iterable[str] | None = None,
        namespace: str | None = None,
    ) -> PrincipalRecord:
        """Create or change a principal; what is None stays. `password` is the hash of one."""
        with self._lock:
            known = self.document.principals.get(name)
            if known is None:
                if grants is None:
                    raise InvalidField(f"grants: {name!r} does not exist yet and needs grants", hint=_GRANTS)
                known = self._new_principal(name, grants, namespace or "")
            changes = {
                "grants": None if grants is None else list(grants),
                "password": password,
                "certificates": None if certificates is None else list(certificates),
                "namespace": namespace,
            }
            record = msgspec.structs.replace(known, **{key: new for key, new in changes.items() if new is not None})
            self._require_namespace(record.namespace)
            self.grants_of(record)
            self._require_unused_certificates(record)
            self._replace("set_user", name, principals={**self.document.principals, name: record})
        self._changed()
        return record

    def rehash_password(self, name: str, before: str, after: str) -> None:
        """Replace the hash of a user's password, unless somebody has set or removed the password meanwhile."""
        with self._lock:
            known = self.document.principals.get(name)
            if known is None or not hmac.compare_digest(known.password.encode(), before.encode()):
                return
            record = msgspec.structs.replace(known, password=after)
            self._replace("rehash_password", name, principals={**self.document.principals, name: record})
        self._changed()

    def delete_user(self, name: str) -> None:
        """Delete a principal with its keys."""
        with self._lock:
            if name not in self.document.principals:
                raise AccessNotFound(f"there is no user or principal {name!r}")
            principals = {known: record for known, record in self.document.principals.items() if known != name}
            keys = {id: record for id, record in self.document.keys.items() if record.principal != name}
            self._replace("delete_user", name, principals=principals, keys=keys)
        self._changed()

    def _require_unused_certificates(self, record: PrincipalRecord) -> None:
        for other in self.document.principals.values():
            taken = set(other.certificates).intersection(record.certificates)
            if taken and other.name != record.name:
                raise InvalidField(f"certificates: {min(taken)!r} already identifies {other.name!r}")

    # roles and namespaces

    def set_role(self, name: str, grants: Iterable[str]) -> None:
        """Create or change a role; whoever has it has the new grants at once."""
        check_name(name, "role")
        if name in ROLES:
            raise InvalidField(f"role: {name!r} is built in", hint="choose another name")
        texts = list(grants)
        parse_grants(texts)  # roles are made of actions, or of built-in roles
        with self._lock:
            roles = {**self.document.roles, name: texts}
            for record in self.document.principals.values():
                _require_grants(record, roles)
            self._replace("set_role", name, roles=roles)
        self._changed()

    def delete_role(self, name: str) -> None:
        """Delete a role that nobody has."""
        with self._lock:
            if name not in self.document.roles:
                raise AccessNotFound(f"there is no role {name!r}", hint="built-in roles cannot be deleted")
            roles = {known: grants for known, grants in self.document.roles.items() if known != name}
            self._require_role_unused(name)
            self._replace("delete_role", name, roles=roles)
        self._changed()

    def _require_role_unused(self, name: str) -> None:
        for record in self.document.principals.values():
            if any(name in text.partition(":")[0].split(",") for text in record.grants):
                raise InvalidField(f"role: {name!r} is granted to {record.name!r}", hint="change its grants first")

    def set_namespace(self, name: str, quotas: Quotas) -> None:
        """Declare a namespace, or change its quotas."""
        check_name(name, "namespace")
        if "." in name or f"{name}.".startswith(RESERVED_PREFIX):
            raise InvalidField(
                f"namespace: {name!r} is not a valid name", hint="use a word without dots, such as 'team-a'"
            )
        with self._lock:
            namespaces = {**self.document.namespaces, name: NamespaceRecord(name, quotas)}
            self._replace("set_namespace", name, namespaces=namespaces)
        self._changed()

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace that no principal belongs to; its queues stay."""
        with self._lock:
            if name not in self.document.namespaces:
                raise AccessNotFound(f"there is no namespace {name!r}")
            for record in self.document.principals.values():
                if record.namespace == name:
                    raise InvalidField(f"namespace: {record.name!r} belongs to {name!r}", hint="delete it first")
            namespaces = {known: record for known, record in self.document.namespaces.items() if known != name}
            self._replace("delete_namespace", name, namespaces=namespaces)
        self._changed()

    def _require_namespace(self, name: str) -> None:
        if name and name not in self.document.namespaces:
            raise AccessNotFound(f"there is no namespace {name!r}", hint="create it with `penstock namespace create`")

    # the file

    def _replace(self, what: str, target: str, **changes: object) -> None:
        """Write the document with these changes; the lock is held."""
        document = msgspec.structs.replace(self.document, **changes)
        self.before_change(what, target)
        if self._disk is not None:
            self._disk.make_directory(DIRECTORY)
            self._disk.write_whole(FILE, msgspec.json.format(msgspec.json.encode(document)))
        self.document = document

    def _changed(self) -> None:
        for notify in list(self.on_change):
            notify()


def _load(disk: Disk | None) -> Document:
    if disk is None or not disk.exists(FILE):
        return Document()
    data = disk.read(FILE)
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise BadSettings(f"{FILE} has version {version}; this Penstock reads up to {VERSION}", hint="upgrade it")
        document = msgspec.json.decode(data, type=Document)
        _check(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidField) as error:
        raise _unreadable(error) from None
    return document


def _check(document: Document) -> None:
    """Refuse what no change can have written: it would be noticed only when somebody connects."""
    for record in document.principals.values():
        _require_grants(record, document.roles)
    for key in document.keys.values():
        if key.principal not in document.principals:
            raise InvalidField(f"key {key.id!r} belongs to {key.principal!r}, which does not exist")


def _require_grants(record: PrincipalRecord, roles: Mapping[str, Iterable[str]]) -> None:
    """Refuse roles with which the grants of a principal would mean nothing."""
    try:
        parse_grants(record.grants, {**ROLES, **roles}, _prefix(record.namespace))
    except InvalidField as error:
        raise InvalidField(f"principal {record.name!r}: {error.message}", hint=error.hint) from None


def _unreadable(error: Exception) -> PenstockError:
    return Damaged(
        f"{FILE} cannot be read: {error}",
        hint="restore it from a backup; without it nobody but the owner can connect, so it is not replaced",
    )


class _Versioned(msgspec.Struct):
    version: int


def _expiry(now: int, seconds: float | None) -> int | None:
    return None if seconds is None else now + round(seconds * MICROS)


def _prefix(namespace: str) -> str:
    return f"{namespace}." if namespace else ""


_GRANTS: Final = "for example `--grant producer:orders`"
