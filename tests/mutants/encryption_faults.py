"""Faults of encryption, and the tests that catch them."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

ENCRYPTION_FAULTS: Final = (
    Fault(
        "filter-in-clear",
        "the filter of an operation on an encrypted queue is stored in clear",
        "storage/sealed_frames.py",
        "        return blank_operation(entry) if isinstance(entry, OperationSet) else None\n",
        "        return None\n",
        ("tests/access/test_encrypted_operations.py",),
    ),
    Fault(
        "salt-by-count",
        "the key of a seal is derived with a number that begins again, so what follows a cut tail has a key twice",
        "seals.py",
        "        return self._seal(self.keys.current(queue), self._entropy(SALT_BYTES))\n",
        "        self._sealed = getattr(self, '_sealed', 0) + 1\n"
        "        return self._seal(self.keys.current(queue), self._sealed.to_bytes(SALT_BYTES, 'big'))\n",
        ("tests/access/test_encrypted_seals.py",),
    ),
    Fault(
        "about-not-sealed",
        "ciphertext opens in another place than that it was made for",
        "seals.py",
        "        sealed: bytes = self._cipher.encrypt(nonce, data, self._about + about)\n"
        "        return sealed\n"
        "\n"
        "    def open(self, sealed: bytes | memoryview, about: bytes, nonce: bytes = NONCE) -> bytes:\n"
        '        """The inverse of `close`; `Damaged` when a bit of it, or what it is about, has changed."""\n'
        "        from cryptography.exceptions import InvalidTag\n"
        "\n"
        "        try:\n"
        "            data: bytes = self._cipher.decrypt(nonce, sealed, self._about + about)\n",
        "        sealed: bytes = self._cipher.encrypt(nonce, data, b'')\n"
        "        return sealed\n"
        "\n"
        "    def open(self, sealed: bytes | memoryview, about: bytes, nonce: bytes = NONCE) -> bytes:\n"
        '        """The inverse of `close`; `Damaged` when a bit of it, or what it is about, has changed."""\n'
        "        from cryptography.exceptions import InvalidTag\n"
        "\n"
        "        try:\n"
        "            data: bytes = self._cipher.decrypt(nonce, sealed, b'')\n",
        ("tests/access/test_encrypted_seals.py",),
    ),
    Fault(
        "plain-without-key",
        "a directory with encrypted queues is opened without its master key",
        "embedded/session.py",
        "            if has_live_keys(disk):\n                raise is_encrypted()\n            return None\n",
        "            return None\n",
        ("tests/access/test_encryption.py",),
    ),
    Fault(
        "encrypted-queue-in-clear",
        "a queue is made with encryption where nothing can be encrypted, and is stored in clear",
        "embedded/handlers.py",
        '    if options.get("encryption") and session.shard.frame_seals is None:\n',
        "    if False:\n",
        ("tests/access/test_encryption.py",),
    ),
    Fault(
        "erased-key-used",
        "a key that was erased is still used by the process that erased it",
        "access/encryption.py",
        "        self._open = {id: key for id, key in self._open.items() if id in live}\n",
        "",
        ("tests/access/test_encrypted_seals.py",),
    ),
    Fault(
        "task-index-in-clear",
        "arguments and results of encrypted queues are in the task index as they are",
        "task_index/sealed_values.py",
        "        if not value or queue not in self._encrypted:\n",
        "        if True:\n",
        ("tests/access/test_encryption.py",),
    ),
    Fault(
        "dedup-hashes-in-clear",
        "hashes of dedup keys of encrypted queues are in checkpoints as they are",
        "shard/checkpoints.py",
        "    return data if seals is None else seals.seal(queue, data, name.encode())\n",
        "    return data\n",
        ("tests/access/test_encrypted_hashes.py",),
    ),
)
