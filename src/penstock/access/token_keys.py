"""Keys that verify JWTs, from a JSON Web Key Set (RFC 7517).

A key verifies one algorithm, which follows from the kind of the key and never from a token: RSA is RS256, P-256 is
ES256, Ed25519 is EdDSA, a shared secret is HS256. A set holds public keys or one kind of secret, never both: else who
knows a public key could sign with it as if it were a secret. Keys of a set that are for something else (encryption,
other algorithms) are left out. No error repeats any part of a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.access.extras import security_extra
from penstock.errors import InvalidField, NotAuthenticated, shown

if TYPE_CHECKING:
    from jwt import PyJWK

KEYS_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2048
HS256: Final = "HS256"
# (kty, crv) → algorithm
ALGORITHMS: Final[Mapping[tuple[str, str | None], str]] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
    ("oct", None): HS256,
}
_JWKS_HINT: Final = 'a JWKS is JSON such as {"keys": [{"kty": "RSA", "kid": "…", "n": "…", "e": "AQAB"}]}'


class TokenKeys:
    """A set of keys; it never changes."""

    __slots__ = ("_by_id",)

    def __init__(self, by_id: Mapping[str, PyJWK]) -> None:
        self._by_id = by_id  # the only key of a set may have no id: ""

    def __repr__(self) -> str:
        return f"TokenKeys({sorted(self._by_id)})"

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def is_secret(self) -> bool:
        """Whether who has these keys can sign with them."""
        return any(key.algorithm_name == HS256 for key in self._by_id.values())

    def find(self, id: str | None) -> PyJWK:
        """The key that a token names; raises `NotAuthenticated`."""
        if not self._by_id:
            raise NotAuthenticated("token: the keys of the issuer are not known yet", hint="try again in a moment")
        if id is not None and id in self._by_id:
            return self._by_id[id]
        if id is None and len(self._by_id) == 1:
            return next(iter(self._by_id.values()))
        if id is None:
            raise NotAuthenticated("token: its header has no kid, and the issuer has several keys")
        raise NotAuthenticated(f"token: its kid {shown(id)} is none of the issuer's keys")


NO_KEYS: Final = TokenKeys({})


class _Jwk(msgspec.Struct):
    """What decides about a key; the rest of it is read by PyJWT."""

    kty: str
    kid: str = ""
    crv: str | None = None
    alg: str | None = None
    use: str | None = None
    key_ops: list[str] | None = None

    @property
    def algorithm(self) -> str | None:
        """What it verifies; None when it is for something else."""
        algorithm = ALGORITHMS.get((self.kty, self.crv))
        if self.alg not in (None, algorithm) or self.use not in (None, "sig"):
            return None
        if self.key_ops is not None and "verify" not in self.key_ops:
            return None
        return algorithm


def parse_keys(text: bytes) -> TokenKeys:
    """The keys of a JWKS; raises `InvalidField` when it is none, or not a safe one."""
    if len(text) > KEYS_BYTES_MAX:
        raise InvalidField(f"it has more than {KEYS_BYTES_MAX:,} bytes", hint=_JWKS_HINT)
    try:
        entries = msgspec.json.decode(text, type=dict[str, Any])["keys"]
        jwks = msgspec.convert(entries, list[_Jwk])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
        raise InvalidField("it is not a JSON Web Key Set", hint=_JWKS_HINT) from None
    if len(jwks) > KEYS_MAX:
        raise InvalidField(f"it has more than {KEYS_MAX} keys")
    keys = list(_usable(jwks, entries))
    _check_set([jwk for jwk, _ in keys])
    return TokenKeys({jwk.kid: key for jwk, key in keys})


def _usable(jwks: list[_Jwk], entries: list[dict[str, Any]]) -> Iterator[tuple[_Jwk, PyJWK]]:
    for number, (jwk, entry) in enumerate(zip(jwks, entries, strict=True)):
        if jwk.algorithm is not None:
            yield jwk, _key(f"keys[{number}]", jwk.algorithm, entry)


def require_extra() -> None:
    """Raise `InvalidField` unless everything that verifies tokens is installed."""
    with security_extra("a broker that takes JWTs"):
        import cryptography  # noqa: F401 - PyJWT does without it, but not for public keys
        import jwt  # noqa: F401


def _key(where: str, algorithm: str, entry: dict[str, Any]) -> PyJWK:
    require_extra()
    from jwt import PyJWK, PyJWTError

    if "d" in entry:
        raise InvalidField(f"{where} is a private key", hint="name the public keys: the issuer keeps the private ones")
    try:
        key = PyJWK(entry, algorithm)
    except (PyJWTError, ValueError, TypeError, AttributeError, KeyError):
        raise InvalidField(f"{where} is not a sound {algorithm} key") from None
    if algorithm == HS256 and len(key.key) < SECRET_BYTES_MIN:
        hint = "make a longer one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise InvalidField(f"{where} is a secret shorter than {SECRET_BYTES_MIN} bytes", hint=hint)
    if algorithm == "RS256" and key.key.key_size < RSA_BITS_MIN:
        raise InvalidField(f"{where} is an RSA key shorter than {RSA_BITS_MIN} bits", hint="have the issuer replace it")
    return key


def _check_set(jwks: list[_Jwk]) -> None:
    if not jwks:
        kinds = ", ".join(sorted(set(ALGORITHMS.values())))
        raise InvalidField("no key in it can verify a token", hint=f"the algorithms are {kinds}")
    if len({jwk.algorithm == HS256 for jwk in jwks}) > 1:
        raise InvalidField("it has secrets beside public keys", hint="keep the secret (kty oct) or the public keys")
    ids = [jwk.kid for jwk in jwks]
    if len(ids) > 1 and "" in ids:
        raise InvalidField("a key has no kid, and there are several keys", hint="give every key a kid of its own")
    if len(set(ids)) < len(ids):
        raise InvalidField("two keys have the same kid", hint="give every key a kid of its own")
