"""Seals: what is stored of an encrypted queue, as AES-256-GCM under a key that is derived for one seal alone.

    key     HKDF-SHA256 (its expansion) of the data key, with 16 random bytes
    nonce   zeros: no derived key is used twice, so a journal whose tail was cut never uses one again
    about   the data directory, and what the sealer says it is: bytes that were moved elsewhere do not open

Only the id of the data key is stored with a seal. Where the keys come from is not known here: `DataKeys` is the seam.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from penstock.errors import Damaged, StorageError
from penstock.extras import security_extra

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
NONCE: Final = bytes(12)
BEGUN_MAX: Final = 256
BLOB: Final = struct.Struct(f"<4s{KEY_ID_BYTES}s{SALT_BYTES}s")
MAGIC: Final = b"PSL\x01"
ERASED: Final = "penstock.erased"  # the header of a message whose data key was erased; its value is the key's id

_INFO: Final = b"penstock seal\x01"
_HASH: Final = b"penstock hash\x01"
_STREAM: Final = b"penstock stream\x01"


class DataKey(NamedTuple):
    """A key that encrypts the messages of one queue in one period."""

    id: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"<DataKey {self.id.hex()}>"


class DataKeys(Protocol):
    """The data keys of a data directory."""

    def current(self, queue: int) -> DataKey:
        """The key for what is written now; the first call for a queue makes one."""

    def find(self, id: bytes) -> DataKey | None:
        """A key by its id; None when it was erased, `StorageError` when nothing is known of it."""

    def root(self, queue: int) -> bytes | None:
        """The secret of a queue that stays the same when keys rotate; None when it was erased."""


class Wrapper(Protocol):
    """A master key, or what stands for it, such as a KMS. Its methods may take long."""

    def wrap(self, data: bytes, /) -> bytes:
        """The bytes encrypted under the master key."""

    def unwrap(self, wrapped: bytes, /) -> bytes:
        """The inverse; any exception says that this master key did not wrap them."""


@cache
def aes() -> Any:
    """The module with the ciphers; an error that says what to install when it is missing."""
    with security_extra("encryption"):
        from cryptography.hazmat.primitives.ciphers import aead
    return aead


def derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256, one block of its expansion: the secret is random already, so there is nothing to extract."""
    return hmac.digest(secret, info + salt + b"\x01", "sha256")


class Seals:
    """Seals and opens what is stored of the encrypted queues of one data directory."""

    def __init__(self, keys: DataKeys, shard_id: bytes, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self.keys = keys
        self.only: AbstractSet[int] | None = None  # a reader who may open these queues alone
        self._begun: dict[bytes, hmac.HMAC] = {}  # the derivation from each data key, up to the salt
        self._shard_id = shard_id
        self._entropy = entropy

    def new(self, queue: int) -> Seal:
        """A seal with a new key for things of one queue."""
        return self._seal(self.keys.current(queue), self._entropy(SALT_BYTES))

    def known(self, id: bytes, salt: bytes) -> Seal | None:
        """A seal that was used before; None when its data key was erased."""
        key = self.keys.find(id)
        return None if key is None else self._seal(key, salt)

    def _seal(self, key: DataKey, salt: bytes) -> Seal:
        begun = self._begun.get(key.id)
        if begun is None:
            if len(self._begun) >= BEGUN_MAX:
                self._begun.clear()
            begun = self._begun[key.id] = hmac.new(key.secret, _INFO, hashlib.sha256)
        derivation = begun.copy()  # what `derived` does, in a third of the time
        derivation.update(salt + b"\x01")
        return Seal(key.id, salt, aes().AESGCM(derivation.digest()), self._shard_id)

    def opens(self, queue: int) -> bool:
        """Whether what belongs to a queue is to be opened here."""
        return self.only is None or queue in self.only

    # values that are stored alone

    def seal(self, queue: int, data: bytes | memoryview, about: bytes) -> bytes:
        """A value as it is stored: it says by which data key, and opens only with the same `about`."""
        seal = self.new(queue)
        return BLOB.pack(MAGIC, seal.id, seal.salt) + seal.close(data, about)

    def open(self, blob: bytes | memoryview, about: bytes) -> bytes | None:
        """The inverse of `seal`; None when the data key was erased."""
        if not is_sealed(blob):
            raise Damaged("an encrypted value is damaged")
        _, id, salt = BLOB.unpack_from(blob)
        seal = self.known(id, salt)
        return None if seal is None else seal.open(blob[BLOB.size :], about)

    # what must come out the same each time

    def hashes(self, queue: int) -> Callable[[bytes], str]:
        """A keyed hash: equal values of a queue have equal ones, and nobody without the key can try values."""
        key = derived(self.keys.root(queue) or b"", b"", _HASH)
        return lambda value: hashlib.blake2b(value, digest_size=16, key=key).hexdigest()

    def stream(self, queue: int, name: str, position: int, data: bytes | memoryview) -> bytes:
        """Bytes of a file at a position, encrypted or decrypted: written by position, it can have no seal as a whole.

        The name of such a file is used once, and the same bytes are written at the same position.
        """
        root = self.keys.root(queue)
        if root is None:
            raise StorageError(f"{name} cannot be read: the data keys of its queue were erased")
        key = derived(root, self._shard_id + name.encode(), _STREAM)
        return _counter_mode(key, position, data)


class Seal:
    """One derived key: for one thing, or for the numbered rows of one table."""

    __slots__ = ("_about", "_cipher", "id", "salt")

    def __init__(self, id: bytes, salt: bytes, cipher: Any, shard_id: bytes) -> None:
        self.id = id
        self.salt = salt
        self._cipher = cipher
        self._about = shard_id

    def close(self, data: bytes | memoryview, about: bytes, nonce: bytes = NONCE) -> bytes:
        """Ciphertext and tag."""
        sealed: bytes = self._cipher.encrypt(nonce, data, self._about + about)
        return sealed

    def open(self, sealed: bytes | memoryview, about: bytes, nonce: bytes = NONCE) -> bytes:
        """The inverse of `close`; `Damaged` when a bit of it, or what it is about, has changed."""
        from cryptography.exceptions import InvalidTag

        try:
            data: bytes = self._cipher.decrypt(nonce, sealed, self._about + about)
        except (InvalidTag, ValueError):
            raise Damaged(f"what was encrypted with data key {self.id.hex()} has changed since") from None
        return data


def is_sealed(blob: bytes | memoryview) -> bool:
    """Whether bytes look like what `Seals.seal` returns."""
    return len(blob) >= BLOB.size + TAG_BYTES and bytes(blob[: len(MAGIC)]) == MAGIC


def _counter_mode(key: bytes, position: int, data: bytes | memoryview) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    block, skipped = divmod(position, 16)
    encryptor = Cipher(AES(key), CTR(block.to_bytes(16, "big"))).encryptor()
    encryptor.update(bytes(skipped))
    out: bytes = encryptor.update(data)
    return out
