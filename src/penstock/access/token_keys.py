"""Keys that verify JWTs, from a JSON Web Key Set (RFC 7517) in a file or at one https URL.

A key verifies one algorithm, which follows from the kind of the key and never from a token: RSA is RS256, P-256 is
ES256, Ed25519 is EdDSA, a shared secret is HS256. A set holds public keys or one kind of secret, never both: else who
knows a public key could sign with it as if it were a secret. Keys of a set that are for something else (encryption,
other algorithms) are left out. No error repeats any part of a key.

A thread reads them again and again: the file every 10 seconds, the URL every 10 minutes, and after a failure every 30
seconds. No request waits for it or causes it, so nobody can have the issuer asked by sending tokens. What cannot be
read or is not sound leaves the keys as they were; `last_error` says why.
"""

from __future__ import annotations

import logging
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from penstock.clock import Clock
from penstock.errors import BadSettings, InvalidField, NotAuthenticated, PenstockError, StorageError, shown
from penstock.extras import security_extra
from penstock.storage.disk import RealDisk

if TYPE_CHECKING:
    from jwt import PyJWK

logger: Final = logging.getLogger("penstock.access")

FILE_SECONDS: Final = 10.0
URL_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 10.0  # for the whole answer
_CHUNK_BYTES: Final = 16 * 1024
_OTHERS: Final = 0o077
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
        raise NotAuthenticated(f"token: its kid {shown(id)} is not among the issuer's keys")


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
        raise InvalidField(f"{where} is a private key", hint="use the public keys: the issuer keeps the private ones")
    try:
        key = PyJWK(entry, algorithm)
    except (PyJWTError, ValueError, TypeError, AttributeError, KeyError):
        raise InvalidField(f"{where} is not a valid {algorithm} key") from None
    if algorithm == HS256 and len(key.key) < SECRET_BYTES_MIN:
        hint = "create a longer one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise InvalidField(f"{where} is a secret shorter than {SECRET_BYTES_MIN} bytes", hint=hint)
    if algorithm == "RS256" and key.key.key_size < RSA_BITS_MIN:
        raise InvalidField(f"{where} is an RSA key shorter than {RSA_BITS_MIN} bits", hint="have the issuer replace it")
    return key


def _check_set(jwks: list[_Jwk]) -> None:
    if not jwks:
        kinds = ", ".join(sorted(set(ALGORITHMS.values())))
        raise InvalidField("no key in it can verify a token", hint=f"the algorithms are {kinds}")
    if len({jwk.algorithm == HS256 for jwk in jwks}) > 1:
        raise InvalidField(
            "it has secrets beside public keys", hint="keep either the secret (kty oct) or the public keys"
        )
    ids = [jwk.kid for jwk in jwks]
    if len(ids) > 1 and "" in ids:
        raise InvalidField("a key has no kid, and there are several keys", hint="give every key a kid of its own")
    if len(set(ids)) < len(ids):
        raise InvalidField("two keys have the same kid", hint="give every key a kid of its own")


# Keeping them up to date: what was read, and what else is asked of the keys in it.
TokenKeysText = tuple[bytes, Callable[[TokenKeys], None]]


class KeySource:
    """Keys that are kept up to date. `keys` may be read from any thread."""

    def __init__(self, place: str, read: Callable[[], TokenKeysText], clock: Clock, period_seconds: float) -> None:
        self.place = place
        self.keys: TokenKeys = NO_KEYS
        self.last_error = ""  # of the last reading; "" when it went well
        self.failures = 0
        self.refreshed_at: int | None = None  # µs, when it last went well
        self._read = read
        self._clock = clock
        self._period_seconds = period_seconds
        self._text: bytes | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-token-keys", daemon=True)

    def refresh(self) -> None:
        """Read the keys now; raises `InvalidField`, and keeps the ones there are, when that fails."""
        text, check = self._read()
        if text != self._text:  # the same object otherwise, so that whoever caches by it may go on
            keys = parse_keys(text)
            check(keys)
            self.keys, self._text = keys, text
            logger.info("JWT keys were loaded", extra={"place": self.place, "keys": len(keys)})
        self.refreshed_at = self._clock.now()

    def start(self) -> None:
        """Keep the keys up to date until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a fetch that is under way is not waited for."""
        self._closing.set()

    def tick(self) -> float:
        """Read the keys, note what went wrong, and return the seconds until the next time."""
        try:
            self.refresh()
        except PenstockError as error:
            self.failures += 1
            if str(error) != self.last_error:
                logger.warning("JWT keys could not be loaded", extra={"place": self.place, "reason": str(error)})
            self.last_error = str(error)
            return min(RETRY_SECONDS, self._period_seconds)
        self.last_error = ""
        return self._period_seconds

    def _run(self) -> None:
        seconds = self.tick()
        while not self._closing.wait(seconds):
            seconds = self.tick()


def open_keys(place: str, clock: Clock) -> KeySource:
    """The keys at a path or an https URL. A file is read at once: raises `BadSettings` when it is of no use."""
    try:
        require_extra()
        if "://" in place:
            return KeySource(place, lambda: (fetch(place, clock), _check_fetched), clock, URL_SECONDS)
        source = KeySource(place, lambda: _read_file(Path(place)), clock, FILE_SECONDS)
        source.refresh()
    except InvalidField as error:
        raise BadSettings(f"jwt_keys: {place}: {error.message}", hint=error.hint) from None
    return source


# Files.


def _read_file(path: Path) -> TokenKeysText:
    try:
        mode = path.stat().st_mode
        text = RealDisk(path.parent).read(path.name, 0, KEYS_BYTES_MAX + 1)
    except (OSError, StorageError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "message", "")
        raise InvalidField(f"it cannot be read: {reason}", hint="use a JWKS file or an https URL") from None

    def check(keys: TokenKeys) -> None:
        if keys.is_secret and mode & _OTHERS:
            raise InvalidField("it contains a secret, and other users can read it", hint=f"chmod 600 {path}")

    return text, check


# URLs.


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        raise InvalidField("it redirects elsewhere", hint="use the URL of the keys themselves")


def fetch(url: str, clock: Clock, context: ssl.SSLContext | None = None) -> bytes:
    """What an https URL answers: at once, whole, and not too much. Raises `InvalidField`."""
    if not url.startswith("https://"):
        raise InvalidField("it is not an https URL")
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
    deadline = clock.monotonic() + round(FETCH_SECONDS * 1_000_000)
    try:
        with opener.open(url, timeout=FETCH_SECONDS) as response:
            return _body(response, clock, deadline)
    except urllib.error.HTTPError as error:
        error.close()
        raise InvalidField(f"it answered HTTP {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InvalidField(f"it cannot be fetched: {reason}") from None


def _body(response: IO[bytes], clock: Clock, deadline: int) -> bytes:
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]  # of a HTTPResponse
        body += chunk
        if len(body) > KEYS_BYTES_MAX:
            raise InvalidField(f"it has more than {KEYS_BYTES_MAX:,} bytes")
        if clock.monotonic() > deadline:
            raise InvalidField(f"it took longer than {FETCH_SECONDS:.0f} seconds")
    return bytes(body)


def _check_fetched(keys: TokenKeys) -> None:
    if keys.is_secret:
        raise InvalidField("it publishes a secret", hint="have the issuer sign with a public key, or use a file")
