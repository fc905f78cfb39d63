"""TLS of a broker: its certificate, what it asks of clients, and new certificates without a restart.

The files are read as a whole or not at all: `load` answers with a context that works, or raises `BadSettings`. A
reload replaces the context, so that connections that are open keep the old one, and a reload that fails keeps it for
the new ones too. The key must not be readable by others, and a certificate that is not valid now is refused: clients
would refuse it anyway, one by one.

Sessions are not resumed: a ticket would outlive the certificate, and the authority that has vouched for a client.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from penstock.clock import Clock
from penstock.errors import BadSettings

logger: Final = logging.getLogger("penstock.tls")

Minimum = Literal["1.3", "1.2"]
ClientCertificates = Literal["optional", "required"]

HANDSHAKE_SECONDS: Final = 5.0
RELOAD_SECONDS: Final = 2.0  # between two looks at the files
_VERSIONS: Final = {"1.3": ssl.TLSVersion.TLSv1_3, "1.2": ssl.TLSVersion.TLSv1_2}
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all good
_ENDING_MICROS_MAX: Final = 14 * 86_400 * 1_000_000
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_VERSION: Final = 0xA0
_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class Validity(NamedTuple):
    """The time in which a certificate is valid, µs."""

    start: int
    end: int

    @property
    def start_text(self) -> str:
        return _text(self.start)

    @property
    def end_text(self) -> str:
        return _text(self.end)


class Files(NamedTuple):
    """Where the certificate, its key and the authority of clients are; no authority: clients need no certificate."""

    certificate: str
    key: str
    client_ca: str = ""


class Loaded(NamedTuple):
    """What the files held when they were read together."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    validity: Validity
    stamps: tuple[object, ...]


class ServerTls:
    """The TLS of a broker. `context` is for the next connection."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        *,
        client: ClientCertificates = "optional",
        minimum: Minimum = "1.3",
    ) -> None:
        self.files = files
        self.client = client
        self.minimum = minimum
        self.failure = ""  # why the last reload failed
        self._clock = clock
        self._tried: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()
        self.loaded = self._load()

    @property
    def context(self) -> ssl.SSLContext:
        return self.loaded.context

    @property
    def expires_at(self) -> int:
        """When the certificate expires, µs."""
        return self.loaded.validity.end

    def reload_if_changed(self) -> bool:
        """Read the files again if they have changed, but not since the last look: they are written one by one.

        Whether there is a new certificate.
        """
        seen, self._seen = self._seen, _stamps(self.files)
        if self._seen != seen or self._seen in (self.loaded.stamps, self._tried):
            return False
        return self.reload()

    def reload(self) -> bool:
        """Read the files again. What cannot be used is logged, and the old certificate stays."""
        self._tried = _stamps(self.files)
        try:
            self.loaded = self._load()
        except BadSettings as error:
            self.failure = error.message
            logger.error("the certificate was not reloaded; the old one stays in use", extra={"reason": error.message})  # noqa: TRY400 - no traceback: it is about a file
            return False
        self.failure = ""
        logger.info("the certificate was reloaded", extra={"expires_at": self.loaded.validity.end_text})
        return True

    def problems(self) -> Iterator[str]:
        """What somebody should look at."""
        if self.failure:
            yield f"the certificate was not reloaded: {self.failure}"
        validity, now = self.loaded.validity, self._clock.now()
        if now >= validity.end:
            yield f"the certificate expired on {validity.end_text}: renew it; it is reloaded automatically"
        elif validity.end - now < min((validity.end - validity.start) // 10, _ENDING_MICROS_MAX):
            yield f"the certificate expires on {validity.end_text}: renew it; it is reloaded automatically"

    def _load(self) -> Loaded:
        files, stamps = self.files, _stamps(self.files)
        certificate, key = _read(files.certificate, "tls_certificate"), _read(files.key, "tls_key")
        client_ca = _read(files.client_ca, "tls_client_ca") if files.client_ca else None
        _check_mode(files.key)
        validity = _checked_validity(certificate, files.certificate, self._clock)
        context = _new_context(self.minimum)
        _load_chain(context, files)
        if client_ca is not None:
            _load_authority(context, files.client_ca, client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self.client == "required" else ssl.CERT_OPTIONAL
        if _stamps(files) != stamps:
            raise BadSettings("tls_certificate, tls_key: the files changed while they were read")
        return Loaded(context, certificate, key, client_ca, validity, stamps)


def peer_names(transport: Any) -> tuple[str, ...]:
    """The names in the certificate of a client: DNS, URI and email; none when it sent none."""
    certificate = transport.get_extra_info("peercert") or {}
    return tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind in {"DNS", "URI", "email"})


def _new_context(minimum: Minimum) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[minimum]
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    return context


# Reading: an error names the setting.


def _stamps(files: Files) -> tuple[object, ...]:
    """What changes when one of the files does."""
    stamps: list[object] = []
    for path in filter(None, files):
        try:
            status = os.stat(path)
        except OSError as error:
            stamps.append(error.errno)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode))
    return tuple(stamps)


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise BadSettings(f"{setting}: there is no file {path}", hint="`penstock tls init` creates one") from None
    except OSError as error:
        raise BadSettings(f"{setting}: {path} cannot be read: {error.strerror or error}") from None


def _check_mode(key: str) -> None:
    mode = stat.S_IMODE(os.stat(key).st_mode)
    if mode & 0o007:
        raise BadSettings(
            f"tls_key: other users can read or change {key} (mode {mode:04o})",
            hint=f"chmod 600 {key}, and create a new key if others may have read it",
        )


def _checked_validity(certificate: bytes, path: str, clock: Clock) -> Validity:
    try:
        validity = validity_of(certificate)
    except ValueError:
        raise BadSettings(f"tls_certificate: {path} contains no PEM certificate") from None
    now = clock.now()
    if now >= validity.end:
        raise BadSettings(f"tls_certificate: {path} expired on {validity.end_text}", hint="renew it")
    if now < validity.start:
        raise BadSettings(
            f"tls_certificate: {path} is not valid before {validity.start_text}",
            hint="check the clock of this machine",
        )
    return validity


def _load_chain(context: ssl.SSLContext, files: Files) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _Encrypted:
        raise BadSettings(
            f"tls_key: {files.key} is encrypted with a password",
            hint=f"openssl pkey -in {files.key} -out plain.pem; chmod 600 plain.pem",
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"tls_key: {files.key} is not the key of the certificate {files.certificate}"
            raise BadSettings(problem, hint="use the two files that were created together") from None
        problem = f"tls_certificate, tls_key: {files.certificate} and {files.key} cannot be used: {_reason(error)}"
        raise BadSettings(problem, hint="both must be PEM; the certificate comes first in its file") from None
    except OSError as error:
        raise BadSettings(f"tls_certificate, tls_key: cannot be read: {error.strerror or error}") from None


class _Encrypted(Exception):
    """A key that needs a password."""


def _no_password() -> str:
    raise _Encrypted


def _load_authority(context: ssl.SSLContext, path: str, text: bytes) -> None:
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise BadSettings(f"tls_client_ca: {path} contains no PEM certificate") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# From when to when a certificate is valid, without a library: a few bytes of DER. A certificate is a sequence that
# begins with one of: version (which may be missing), serial, algorithm, issuer, and the validity, which is two times.
# An element of DER is its type, its length and its content.


def validity_of(pem: bytes) -> Validity:
    """Of the first certificate in a PEM file; raises `ValueError` when there is none."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("there is no certificate")
    certificate, _ = _element(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")))
    fields, _ = _element(certificate)
    if fields[:1] == bytes([_VERSION]):
        fields = _element(fields)[1]
    for _ in ("serial", "algorithm", "issuer"):
        fields = _element(fields)[1]
    times, _ = _element(fields)
    start = _micros(times)
    return Validity(start, _micros(_element(times)[1]))


def _element(data: bytes) -> tuple[bytes, bytes]:
    """The content of the first element, and what follows it."""
    if len(data) < 2:
        raise ValueError("a certificate ends early")
    length, at = data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at])
    if len(data) < at + length:
        raise ValueError("a certificate ends early")
    return data[at : at + length], data[at + length :]


def _micros(data: bytes) -> int:
    if data[0] not in _FORMATS:
        raise ValueError("a certificate without times")
    moment = datetime.strptime(_element(data)[0].decode("ascii"), _FORMATS[data[0]]).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000


def _text(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")
