"""Where the keys of JWTs come from: a JWKS in a file, or at one https URL.

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
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final

from penstock.access.token_keys import KEYS_BYTES_MAX, NO_KEYS, TokenKeys, parse_keys, require_extra
from penstock.clock import Clock
from penstock.errors import BadSettings, InvalidField, PenstockError, StorageError
from penstock.storage.disk import RealDisk

logger: Final = logging.getLogger("penstock.access")

FILE_SECONDS: Final = 10.0
URL_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 10.0  # for the whole answer
_CHUNK_BYTES: Final = 16 * 1024
_OTHERS: Final = 0o077


# What was read, and what else is asked of the keys in it.
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
            logger.info("keys of JWTs were read", extra={"place": self.place, "keys": len(keys)})
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
                logger.warning("keys of JWTs were not read", extra={"place": self.place, "reason": str(error)})
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
        raise InvalidField(f"it cannot be read: {reason}", hint="name a JWKS file, or an https URL") from None

    def check(keys: TokenKeys) -> None:
        if keys.is_secret and mode & _OTHERS:
            raise InvalidField("it holds a secret, and other users may read it", hint=f"chmod 600 {path}")

    return text, check


# URLs.


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        raise InvalidField("it redirects elsewhere", hint="name the URL that has the keys themselves")


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
