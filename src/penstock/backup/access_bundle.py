"""Keys, users and data keys of a directory, encrypted with a passphrase.

    "PNSTKAC1" | salt 16 bytes | nonce 12 bytes | ciphertext and tag

The key is scrypt of the passphrase (n = 2¹⁶, r = 8, p = 1: 64 MiB), the cipher AES-256-GCM, the plaintext a MessagePack
map of names and bytes. A set keeps the newest one only, whatever moment is restored: a data key that was erased is gone
from the set with the next backup, and what it encrypted cannot be read in any of the set's moments.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import msgspec

from penstock.errors import InvalidField, NotAuthorised
from penstock.model import ACCESS_DIRECTORY
from penstock.model_audit import ANCHOR_FILE
from penstock.seals import aes
from penstock.storage.disk import Disk, ReadableDisk

MAGIC: Final = b"PNSTKAC1"
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
PASSPHRASE_LENGTH_MIN: Final = 12
_FACTORS: Final = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 1 << 27, "dklen": 32}

_files: Final = msgspec.msgpack.Decoder(dict[str, bytes])


def check_passphrase(passphrase: str) -> str:
    """`passphrase` itself when it is long enough."""
    if len(passphrase) < PASSPHRASE_LENGTH_MIN:
        raise InvalidField(
            f"passphrase: fewer than {PASSPHRASE_LENGTH_MIN} characters",
            hint="`openssl rand -base64 24` creates one",
        )
    return passphrase


def pack_access(disk: ReadableDisk, passphrase: str) -> bytes:
    """What a directory knows of keys, users and data keys, sealed."""
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    cipher = aes().AESGCM(_key(check_passphrase(passphrase), salt))
    plain = msgspec.msgpack.encode(_read(disk))
    return MAGIC + salt + nonce + bytes(cipher.encrypt(nonce, plain, MAGIC))


def unpack_access(sealed: bytes, passphrase: str, disk: Disk) -> None:
    """Write it into a directory. A wrong passphrase is refused before anything is written."""
    from cryptography.exceptions import InvalidTag

    start = len(MAGIC) + SALT_BYTES
    salt, nonce = sealed[len(MAGIC) : start], sealed[start : start + NONCE_BYTES]
    try:
        cipher = aes().AESGCM(_key(passphrase, salt))
        plain = cipher.decrypt(nonce, sealed[start + NONCE_BYTES :], MAGIC)
    except (InvalidTag, ValueError):
        raise NotAuthorised("the passphrase does not decrypt the keys and users of this backup") from None
    disk.make_directory(ACCESS_DIRECTORY)
    for name, data in _files.decode(plain).items():
        disk.write_whole(f"{ACCESS_DIRECTORY}/{name}", data)


def _read(disk: ReadableDisk) -> dict[str, bytes]:
    """The files of `access/`, apart from the anchor of the audit log, which is in every moment."""
    if not disk.exists(ACCESS_DIRECTORY):
        return {}
    names = [name for name in disk.list(ACCESS_DIRECTORY) if name.endswith(".json")]
    paths = {name: f"{ACCESS_DIRECTORY}/{name}" for name in names}
    return {name: disk.read(path) for name, path in paths.items() if path != ANCHOR_FILE}


def _key(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=salt, **_FACTORS)
