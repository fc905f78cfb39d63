"""TLS of a client: whom it trusts, what it proves itself with, and what is wrong when a handshake fails.

The name of the host is always verified; there is no way to switch that off. Without `ca` the authorities of the system
are trusted. The files are read again when they change, so that a program outlives its certificate.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import InvalidField, PenstockError, TlsFailed, Unavailable, reason

if TYPE_CHECKING:
    from penstock.remote.settings import Address

_NAME_MISMATCH: Final = frozenset({62, 64})  # codes of OpenSSL: no name, no address of the certificate is the host's
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}
)
_VERSION: Final = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")
_HOW_TO_PROVE: Final = "pass tls_certificate and tls_key, signed by a CA that the broker trusts"


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files; an empty one is not used."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


class ClientTls:
    """Contexts for the connections of a session."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the next connection. Raises `InvalidField` when a file cannot be used."""
        stamps = self._look()
        if self._context is None or stamps != self._stamps:
            self._context, self._stamps = self._new_context(), stamps
        return self._context

    def wrap(self, connection: socket.socket, address: Address) -> ssl.SSLSocket:
        """A connection after the handshake; when that fails, it is closed."""
        try:
            return self.context().wrap_socket(connection, server_hostname=address.host)
        except ssl.SSLError as error:
            connection.close()
            raise explained(error, address) from error
        except BaseException:
            connection.close()
            raise

    def _look(self) -> tuple[int, ...]:
        files = self._files
        paths = {"tls_ca": files.ca, "tls_certificate": files.certificate, "tls_key": files.key}
        stamps = []
        for name, path in paths.items():
            if path:
                try:
                    stamps.append(os.stat(path).st_mtime_ns)
                except OSError as error:
                    raise InvalidField(f"{name}: {path} cannot be read: {error.strerror}") from None
        return tuple(stamps)

    def _new_context(self) -> ssl.SSLContext:
        files = self._files
        try:
            context = ssl.create_default_context(cafile=files.ca or None)
        except (ssl.SSLError, OSError) as error:
            raise InvalidField(f"tls_ca: {files.ca} contains no PEM certificates: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.certificate:
            try:
                context.load_cert_chain(files.certificate, files.key or None)
            except (ssl.SSLError, OSError) as error:
                what = f"{files.certificate} and {files.key or 'its key'}"
                raise InvalidField(f"tls_certificate, tls_key: {what} cannot be used: {error}") from None
        return context


def explained(error: ssl.SSLError, address: Address) -> Exception:
    """What a failed handshake means: `TlsFailed` when trying again is of no use, the error itself otherwise."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_verified(error, address)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return error  # as when any connection is lost
    reason = error.reason or str(error)
    if reason in _NOT_TLS:
        plain = address.scheme.removesuffix("s")
        return TlsFailed(f"the server at {address} does not use TLS", hint=f"use a URL that starts with {plain}://")
    if any(word in reason for word in _VERSION):
        return TlsFailed(f"{address} has no TLS version in common with this client: {_words(reason)}")
    if "ALERT" in reason and any(word in reason for word in _CERTIFICATE_ALERTS):
        return TlsFailed(f"the broker at {address} requires another client certificate", hint=_HOW_TO_PROVE)
    return TlsFailed(f"the TLS handshake with {address} failed: {_words(reason)}")


def no_answer(address: Address, error: object) -> Unavailable:
    """Nobody answers. With TLS a broker that wants a certificate of the client just hangs up."""
    if isinstance(error, PenstockError):
        why = error.message
    else:
        why = reason(error) if isinstance(error, BaseException) else str(error)
    text = f"no broker answers at {address}: {why}"
    if why == "connection refused" and address.is_loopback:
        return Unavailable(text, hint=f"start a broker with '{address.serve_command()}', or check the address")
    if address.is_tls and why != "connection refused" and not isinstance(error, socket.gaierror):
        return Unavailable(text, hint=f"if the broker requires client certificates, {_HOW_TO_PROVE}")
    return Unavailable(text, hint=getattr(error, "hint", None))


def _not_verified(error: ssl.SSLCertVerificationError, address: Address) -> TlsFailed:
    if error.verify_code in _NAME_MISMATCH:
        hint = "use a name that is in the certificate, or add this one: penstock tls init --renew --host NAME"
        return TlsFailed(f"hostname mismatch: the certificate at {address} is not for {address.host!r}", hint=hint)
    if error.verify_code in {_EXPIRED, _NOT_YET_VALID}:
        hint = "renew it at the broker, or set the clock of this machine"
        return TlsFailed(f"the certificate at {address} is not valid now: {error.verify_message}", hint=hint)
    hint = "pass tls_ca='ca.pem', the CA that signed it, or set PENSTOCK_TLS_CA"
    return TlsFailed(f"certificate not trusted: {address}: {error.verify_message}", hint=hint)


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def read_now(connection: socket.socket, size: int) -> bytes | None:
    """What a connection that is readable holds; None when that was only for TLS itself, such as a session ticket."""
    seconds = connection.gettimeout()
    connection.settimeout(0)
    try:
        return connection.recv(size)
    except (ssl.SSLWantReadError, BlockingIOError):
        return None
    finally:
        connection.settimeout(seconds)


def shutdown_both(connection: socket.socket) -> None:
    """End a connection that another thread reads from; that of TLS must keep its state, which the other one uses."""
    socket.socket.shutdown(connection, socket.SHUT_RDWR)
