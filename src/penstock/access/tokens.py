"""JSON Web Tokens: from a signed text to a name, a namespace and grants.

A token counts when the issuer's key signed it with the algorithm of that key, when it names this issuer and this
audience, and from `nbf` until `exp`, which it must have. Clocks may differ by a minute, except for `exp`: a token, and
every connection that it opened, ends then. PyJWT checks the signature; the claims are checked here, by the broker's
clock. No error repeats a token.

The principal of a token is named `jwt:<sub>`. A name with a colon cannot be given to a key or a user, so whoever may
choose a `sub` at the issuer cannot choose to be one of these.

A check takes 75 to 185 µs, so tokens that were verified are kept by their SHA-256 until they expire or the keys change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penstock.access.grants import ROLES, Grant, parse_grants
from penstock.access.token_keys import NO_KEYS, TokenKeys
from penstock.clock import Clock
from penstock.errors import InputError, InvalidField, NotAuthenticated, shown
from penstock.extras import security_extra
from penstock.model import check_name

if TYPE_CHECKING:
    from jwt import PyJWS

TOKEN_BYTES_MAX: Final = 8 * 1024
LEEWAY_SECONDS: Final = 60
CACHED_MAX: Final = 10_000
SUBJECT_LENGTH_MAX: Final = 255
INSTANT_SECONDS_MAX: Final = 253_402_300_799  # the end of the year 9999
NAME_PREFIX: Final = "jwt:"
NAMESPACE_CLAIM: Final = "penstock_namespace"
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REQUIRED: Final = ("exp", "iss", "aud", "sub")
_HINT: Final = "get a new token from the issuer"

Roles = Mapping[str, Iterable[str]]


class Claims(NamedTuple):
    """What a token says about who has it."""

    name: str
    grants: tuple[Grant, ...]
    namespace: str
    expires_at: int  # µs


class HasKeys(Protocol):
    """Where the present keys are found: another object when they change."""

    @property
    def keys(self) -> TokenKeys: ...


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = None


class _Payload(msgspec.Struct):
    iss: str
    sub: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float = 0
    iat: int | float = 0
    namespace: str = msgspec.field(name=NAMESPACE_CLAIM, default="")


class TokenVerifier:
    """Verifies the tokens of one issuer. Used on the broker's event loop only."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        keys: HasKeys,
        grants_claim: str,
        clock: Clock,
        roles: Callable[[], Roles] = lambda: ROLES,
        is_namespace: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._issuer = issuer
        self._audience = audience
        self._source = keys
        self._grants_claim = grants_claim
        self._clock = clock
        self._roles = roles
        self._is_namespace = is_namespace
        self._cached: dict[bytes, Claims] = {}  # by the digest of the token, the least recent first
        self._cached_for: TokenKeys = NO_KEYS

    def verify(self, token: str) -> Claims:
        """What a token says; raises `NotAuthenticated` unless it is valid."""
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(f"token: it is longer than {TOKEN_BYTES_MAX:,} bytes", hint=_HINT)
        keys = self._source.keys
        if keys is not self._cached_for:
            self.forget()
            self._cached_for = keys
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        claims = self._cached.pop(digest, None)
        if claims is None:
            claims = self._claims(_signed(token, keys))
        if claims.expires_at <= self._clock.now():
            raise NotAuthenticated("token: it has expired", hint=_HINT)
        self._cached[digest] = claims
        if len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        return claims

    def forget(self) -> None:
        """Verify every token again: keys or roles have changed."""
        self._cached.clear()

    def _claims(self, payload: bytes) -> Claims:
        claims = _decoded(payload)
        self._check_parties(claims)
        self._check_times(claims)
        subject, namespace = claims.known.sub, claims.known.namespace
        if not 0 < len(subject) <= SUBJECT_LENGTH_MAX or not subject.isprintable() or subject.isspace():
            raise NotAuthenticated(f"token: its sub {shown(subject)} is not a valid name")
        try:
            prefix = _prefix(namespace)
            grants = parse_grants(_texts(claims.others.get(self._grants_claim)), self._roles(), prefix)
        except InputError as error:
            raise NotAuthenticated(f"token: claim {self._grants_claim!r}: {error.message}", hint=error.hint) from None
        if namespace and not self._is_namespace(namespace):
            raise NotAuthenticated(
                f"token: its {NAMESPACE_CLAIM} {shown(namespace)} does not exist here",
                hint="an owner creates it with `penstock namespace create`",
            )
        return Claims(NAME_PREFIX + subject, grants, namespace, int(claims.known.exp * 1_000_000))

    def _check_parties(self, claims: _AllClaims) -> None:
        issuer, audience = claims.known.iss, claims.known.aud
        if issuer != self._issuer:
            raise NotAuthenticated(f"token: its iss is {shown(issuer)}, but this broker trusts {self._issuer!r}")
        if self._audience not in ([audience] if isinstance(audience, str) else audience):
            raise NotAuthenticated(f"token: its aud is {shown(audience)[:200]}, but this broker is {self._audience!r}")

    def _check_times(self, claims: _AllClaims) -> None:
        known, latest = claims.known, self._clock.now() / 1_000_000 + LEEWAY_SECONDS
        for name in ("exp", "nbf", "iat"):
            if not 0 <= getattr(known, name) <= INSTANT_SECONDS_MAX:
                raise NotAuthenticated(f"token: its {name} is not a time in seconds since 1970")
        if known.nbf > latest:
            raise NotAuthenticated("token: it is not valid yet", hint="compare the clocks of the broker and the issuer")
        if known.iat > latest:
            raise NotAuthenticated(
                "token: it was issued in the future", hint="compare the clocks of the broker and the issuer"
            )


def _signed(token: str, keys: TokenKeys) -> bytes:
    """The payload of a token whose signature is right."""
    jws = _jws()
    import jwt

    if token.count(".") != 2 or not token.isascii():
        raise NotAuthenticated("token: it is neither an API key nor a JWT", hint=_HINT)
    try:
        header = msgspec.convert(jws.get_unverified_header(token), _Header)
    except (jwt.PyJWTError, msgspec.ValidationError, RecursionError):
        raise NotAuthenticated("token: its header is not that of a JWT", hint=_HINT) from None
    if header.crit is not None:
        raise NotAuthenticated("token: its header has crit, and extensions are not supported")
    if header.typ is not None and header.typ.lower() not in _TYPES:
        raise NotAuthenticated(f"token: its typ is {shown(header.typ)} instead of JWT")
    key = keys.find(header.kid)
    if header.alg != key.algorithm_name:
        raise NotAuthenticated(f"token: its alg is {shown(header.alg)}, but the key is for {key.algorithm_name}")
    try:
        payload: bytes = jws.decode(token, key, algorithms=[key.algorithm_name])
    except (jwt.PyJWTError, RecursionError):
        raise NotAuthenticated("token: its signature is not valid", hint=_HINT) from None
    return payload


@cache
def _jws() -> PyJWS:
    with security_extra("a broker that takes JWTs"):
        from jwt import PyJWS
    return PyJWS()


class _AllClaims(NamedTuple):
    known: _Payload
    others: dict[str, Any]


def _decoded(payload: bytes) -> _AllClaims:
    try:
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NotAuthenticated("token: its claims are not a JSON object") from None
    for name in _REQUIRED:
        if name not in claims:
            raise NotAuthenticated(f"token: it has no {name}", hint=f"have the issuer set {', '.join(_REQUIRED)}")
    try:
        return _AllClaims(msgspec.convert(claims, _Payload), claims)
    except msgspec.ValidationError as error:
        raise NotAuthenticated(f"token: a claim has the wrong type: {error}") from None


def _texts(claim: object) -> list[str]:
    """The texts of grants: a list, or one text with spaces between them. No claim grants nothing."""
    if claim is None:
        return []
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list):
        return claim  # what is no text in it is refused with the rest
    raise InvalidField("it is neither a list nor a string", hint='it looks like ["push:orders", "viewer:*"]')


def _prefix(namespace: str) -> str:
    """What the names of a namespace's queues begin with."""
    if not namespace:
        return ""
    if "." in check_name(namespace, "namespace"):
        raise InvalidField(f"namespace: {namespace!r} has a dot", hint="a namespace is a word such as 'team-a'")
    return f"{namespace}."
