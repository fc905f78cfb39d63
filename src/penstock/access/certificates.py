"""Certificates of one's own: an authority, and what it signs for a broker and its clients.

Everything is a P-256 key and a certificate in PEM. Nothing here touches a file: `make` returns what to write. With the
authority of before, given as `Authority`, new certificates are trusted by whoever trusted the old ones.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.clock import Clock
from penstock.errors import InvalidField
from penstock.extras import security_extra

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
DAYS_DEFAULT: Final = 365
DAYS_MAX: Final = AUTHORITY_DAYS
CA, CA_KEY, SERVER, SERVER_KEY = "ca.pem", "ca.key", "server.pem", "server.key"
_SKEW: Final = timedelta(minutes=5)  # clocks of clients may be behind


class Authority(NamedTuple):
    """What signs: its certificate and key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


class Maker:
    """Makes certificates as of one moment."""

    def __init__(self, clock: Clock) -> None:
        with security_extra("penstock tls init"):
            import cryptography  # noqa: F401
        self._now = datetime.fromtimestamp(clock.now() // 1_000_000, UTC)

    def authority(self, name: str) -> Authority:
        """A new authority, which signs itself."""
        from cryptography import x509

        key = _new_key()
        builder = self._builder(_subject(name), key, AUTHORITY_DAYS)
        builder = builder.issuer_name(_subject(name))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        return Authority(_signed(builder, key), key)

    def signed(
        self, authority: Authority, names: Sequence[str], days: int, *, is_client: bool = False
    ) -> tuple[bytes, bytes]:
        """A certificate for these names and its key, in PEM."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if is_client else ExtendedKeyUsageOID.SERVER_AUTH
        issuer: Any = authority.key.public_key()
        builder = self._builder(_subject(names[0]), key, days).issuer_name(authority.certificate.subject)
        for extension, is_critical in (
            (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage([purpose]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
        ):
            builder = builder.add_extension(extension, critical=is_critical)
        return certificate_pem(_signed(builder, authority.key)), key_pem(key)

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        from cryptography import x509

        builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(self._now - _SKEW).not_valid_after(self._now + timedelta(days=days))
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """An authority that was made before; raises `InvalidField` when the files do not hold one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        authority = Authority(
            x509.load_pem_x509_certificate(certificate),
            serialization.load_pem_private_key(key, password=None),  # type: ignore[arg-type]
        )
    except (ValueError, TypeError) as error:
        raise InvalidField(f"{CA}, {CA_KEY}: not a certificate authority: {error}") from None
    if authority.certificate.public_key() != authority.key.public_key():
        raise InvalidField(f"{CA_KEY} is not the key of {CA}")
    return authority


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: EllipticCurvePrivateKey) -> bytes:
    """A key as text, not encrypted."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _subject(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _usage(**named: bool) -> x509.KeyUsage:
    from cryptography import x509

    uses = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    more = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{use: named.get(use, False) for use in (*uses, *more)})


def _general_name(name: str) -> x509.GeneralName:
    """A name as what it looks like: an address, a URI, an email address, or the name of a host or service."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        if "://" in name or name.startswith("urn:"):
            return x509.UniformResourceIdentifier(name)
        return x509.RFC822Name(name) if "@" in name else x509.DNSName(name)
    except ValueError:
        raise InvalidField(
            f"name: {name!r} cannot be in a certificate", hint="use ASCII; internationalized names start with xn--"
        ) from None
