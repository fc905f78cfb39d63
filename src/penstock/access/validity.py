"""From when to when a certificate is valid, without a library: a few bytes of DER.

A certificate is a sequence that begins with one of: version (which may be missing), serial, algorithm, issuer, and the
validity, which is two times. An element of DER is its type, its length and its content.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final, NamedTuple

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
