"""Who is asking: from an API key, a JWT, a client certificate or a proof of the run's key to a principal.

A principal object stands for one credential. As long as some connection or a recent request uses it, a change in the
store reaches it: new grants count at once, and a credential that was revoked or has expired ends its connections.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from penstock.access.discovery import BROKER, CLIENT, Entry, new_nonce
from penstock.access.grants import OWNER, Grant, Principal, owner_name
from penstock.access.keys import PREFIX, digest_of, is_key, key_id, make_key
from penstock.access.store import AccessStore, Document, PrincipalRecord
from penstock.access.tokens import TOKEN_BYTES_MAX, Claims
from penstock.clock import Clock
from penstock.errors import InvalidField, NotAuthenticated

NO_DIGEST: Final = digest_of("")  # of a key that does not exist: comparing it takes as long
OWNER_NAME: Final = "owner"
RECENT_MAX: Final = 10_000  # tokens whose principal is kept though no connection may use it
CHALLENGES_MAX: Final = 1024
CHALLENGE_US: Final = 30_000_000
FOREVER: Final = 1 << 62
HINT: Final = (
    "pass a key as token=, PENSTOCK_TOKEN or PENSTOCK_TOKEN_FILE, or as the header 'Authorization: Bearer <key>'; "
    "an owner creates one with `penstock key create`"
)


class Tokens(Protocol):
    """What verifies JWTs."""

    def verify(self, token: str) -> Claims:
        """What a token says; raises `NotAuthenticated` unless it is valid."""


class Found(NamedTuple):
    """A credential as it is now."""

    name: str
    grants: tuple[Grant, ...]
    namespace: str = ""
    expires_at: int | None = None


class Credential(Principal):
    """A principal as one credential proves it."""

    __slots__ = ("__weakref__", "expires_at", "look_up")

    def __init__(self, found: Found, credential: str, look_up: Callable[[], Found | None]) -> None:
        super().__init__(found.name, found.grants, found.namespace, credential)
        self.expires_at = found.expires_at
        self.look_up = look_up  # the credential as it is now; None: it does not count any more


class Authenticator:
    """Authenticates for one broker. Used on its event loop only; the store may change in any thread."""

    def __init__(self, store: AccessStore, clock: Clock, entry: Entry, tokens: Tokens | None = None) -> None:
        self._store = store
        self._clock = clock
        self._entry = entry
        self._tokens = tokens
        self._live: WeakValueDictionary[str, Credential] = WeakValueDictionary()  # by credential
        self._next_expiry = FOREVER  # of all that are live; it may be too early, never too late
        self._recent: OrderedDict[bytes, Credential] = OrderedDict()  # by the digest of the token
        self._challenges: OrderedDict[str, tuple[str, str, int]] = OrderedDict()
        # For programs of the owner that have proved the run's key, over HTTP: a token that counts for this run only.
        self._session = make_key(entry.run + "s")
        # Called with the name of a principal of the store that has lost its last credential: see `owner_name`.
        self.on_gone: Callable[[str], object] = lambda name: None
        self._known = store.document
        self._names, self._known_until = _with_credential(store.document, clock.now())

    @property
    def run_token(self) -> str:
        """A token for who has proved the run's key and cannot do so with every request."""
        return self._session.text

    # credentials

    def by_token(self, token: str) -> Principal:
        """The principal of an API key or a JWT; raises `NotAuthenticated`."""
        if not token:
            raise NotAuthenticated("this broker requires authentication, and no token was sent", hint=HINT)
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(f"token: longer than {TOKEN_BYTES_MAX:,} bytes", hint=HINT)
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        principal = self._recent.get(digest)
        if principal is None or principal.is_revoked or self._is_over(principal):
            principal = self._by_key(token) if token.startswith(PREFIX) else self._by_jwt(token, digest)
            self._recent[digest] = principal
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)
        return principal

    def _by_key(self, token: str) -> Credential:
        id = key_id(token)
        if id is not None and is_key(token, self._digest_of(id)):
            shown = "owner" if id in (self._entry.run, self._session.id) else f"key:{id}"
            principal = self._resolved(f"key:{id}", shown, lambda: self._found_key(id))
            if principal is not None:
                return principal
        raise NotAuthenticated("the key is not valid: unknown, revoked or expired", hint=HINT)

    def _digest_of(self, id: str) -> str:
        if id == self._entry.run:
            return digest_of(self._entry.key)
        if id == self._session.id:
            return self._session.digest
        record = self._store.document.keys.get(id)
        return record.digest if record is not None else NO_DIGEST

    def _found_key(self, id: str) -> Found | None:
        if id in (self._entry.run, self._session.id):
            return Found(OWNER_NAME, OWNER)
        document = self._store.document
        key = document.keys.get(id)
        if key is None or (key.expires_at is not None and key.expires_at <= self._clock.now()):
            return None
        record = document.principals[key.principal]
        return Found(record.name, self._store.grants_of(record), record.namespace, key.expires_at)

    def _by_jwt(self, token: str, digest: bytes) -> Credential:
        tokens = self._tokens
        if tokens is None:
            raise NotAuthenticated("the token is not an API key, and this broker accepts no other kind", hint=HINT)
        tokens.verify(token)

        def look_up() -> Found | None:
            try:
                claims = tokens.verify(token)  # from its cache, as long as the keys are the same
            except NotAuthenticated:
                return None
            return Found(claims.name, claims.grants, claims.namespace, claims.expires_at)

        principal = self._resolved(f"jwt:{digest.hex()}", "jwt", look_up)
        if principal is None:
            raise NotAuthenticated("the token has expired", hint=HINT)
        return principal

    def by_certificate(self, names: Sequence[str]) -> Principal | None:
        """The principal for whom a client certificate with these names stands; None: there is none."""
        record = self._store.principal_of_certificate(names)
        if record is None:
            return None
        # By its names: a principal has several certificates, and one that is taken from it ends alone.
        credential = f"certificate:{sorted(names)}:{record.name}"
        return self._resolved(
            credential, "certificate", lambda: self._found(record, self._store.principal_of_certificate(names))
        )

    def by_user(self, name: str) -> Principal | None:
        """The principal of a user whose password was checked, or who has a session."""
        if name == OWNER_NAME:
            return self._resolved("owner", "owner", lambda: Found(OWNER_NAME, OWNER))
        record = self._store.document.principals.get(name)
        if record is None:
            return None
        return self._resolved(
            f"user:{name}", "user", lambda: self._found(record, self._store.document.principals.get(name))
        )

    def _found(self, before: PrincipalRecord, record: PrincipalRecord | None) -> Found | None:
        """A principal as it is now; one that was deleted and created again is somebody else."""
        if record is None or (record.name, record.created_at) != (before.name, before.created_at):
            return None
        return Found(record.name, self._store.grants_of(record), record.namespace)

    # the run's key, proved without being sent

    def challenge(self, client_nonce: str, place: str) -> tuple[str, str]:
        """The broker's nonce, and its proof that it has the key."""
        nonce = new_nonce()
        self._challenges[nonce] = (client_nonce, place, self._clock.now() + CHALLENGE_US)
        if len(self._challenges) > CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        return nonce, self._entry.proof(BROKER, client_nonce, nonce, place)

    def by_proof(self, broker_nonce: str, proof: str, place: str) -> Principal:
        """The owner, when the client's proof is right; a challenge can be answered once."""
        client_nonce, where, until = self._challenges.pop(broker_nonce, ("", "", 0))
        is_valid = self._entry.is_proof(proof, CLIENT, client_nonce, broker_nonce, where)
        if not is_valid or where != place or until < self._clock.now():
            raise NotAuthenticated("the proof of the owner's key is not valid", hint=HINT)
        principal = self._resolved(f"key:{self._entry.run}", "owner", lambda: self._found_key(self._entry.run))
        assert principal is not None
        return principal

    # changes

    def _resolved(self, credential: str, shown: str, look_up: Callable[[], Found | None]) -> Credential | None:
        """The principal of a credential, new or live; None when it does not count any more.

        `credential` tells it from all others; `shown` is what the audit log says of it.
        """
        found = _now(look_up)
        if found is None:
            return None
        principal = self._live.get(credential)
        if principal is None:
            principal = self._live[credential] = Credential(found, shown, look_up)
            self._next_expiry = min(self._next_expiry, found.expires_at or FOREVER)
        return principal

    def refresh(self) -> None:
        """Bring every live principal up to date: called when the store, or the keys of JWTs, have changed."""
        for credential, principal in list(self._live.items()):
            found = _now(principal.look_up)
            if found is None:
                del self._live[credential]
                principal.revoke()
                continue
            principal.expires_at = found.expires_at
            if (found.grants, found.namespace) != (principal.grants, principal.namespace):
                principal.change(found.grants, found.namespace)
        self._forget_revoked()
        self._notice_gone()

    def expire(self) -> None:
        """Revoke what has expired: called often, so it costs nothing until something has."""
        if self._clock.now() >= self._next_expiry:
            for credential, principal in list(self._live.items()):
                if self._is_over(principal):
                    del self._live[credential]
                    principal.revoke()
            self._forget_revoked()
        self._notice_gone()

    def _is_over(self, principal: Credential) -> bool:
        return principal.expires_at is not None and principal.expires_at <= self._clock.now()

    def _forget_revoked(self) -> None:
        for digest in [digest for digest, principal in self._recent.items() if principal.is_revoked]:
            del self._recent[digest]
        ends = (principal.expires_at for principal in list(self._live.values()))
        self._next_expiry = min((end for end in ends if end is not None), default=FOREVER)

    def _notice_gone(self) -> None:
        """Call `on_gone` for principals of the store that had a credential the last time and have none now."""
        document, now = self._store.document, self._clock.now()
        if document is self._known and now < self._known_until:
            return
        before, (self._names, self._known_until) = self._names, _with_credential(document, now)
        self._known = document
        for name in before - self._names:
            self.on_gone(name)


def _with_credential(document: Document, now: int) -> tuple[frozenset[str], int]:
    """The principals that can prove who they are, and until when that holds if nothing changes."""
    keys = [key for key in document.keys.values() if key.expires_at is None or key.expires_at > now]
    names = {key.principal for key in keys}
    names |= {record.name for record in document.principals.values() if record.password or record.certificates}
    records = (document.principals[name] for name in names)
    until = min((key.expires_at for key in keys if key.expires_at is not None), default=FOREVER)
    return frozenset(owner_name(record.name, record.namespace) for record in records), until


def _now(look_up: Callable[[], Found | None]) -> Found | None:
    """A credential as it is now. One whose grants mean nothing any more does not count."""
    try:
        return look_up()
    except InvalidField:
        return None
