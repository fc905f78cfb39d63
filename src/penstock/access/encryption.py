"""The key ring of a data directory: data keys, each wrapped by a master key that is never in the directory.

    access/data_keys.json
    {"format": 1, "keys": [{"id", "queue", "name", "use", "created_at", "wrapped", "erased_at"}], "crc32c"}

A queue has one `root`, which stays, and a `data` key for each period. Journal, segments and backups hold ids only, so
to erase a key here is to erase all that it encrypted, wherever copies of it are. The master key comes from a file, from
a command (`kms_command`), or from an object with `wrap` and `unwrap` (`Wrapper`): the seam for a KMS.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import logging
import os
import secrets
import shlex
import stat
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from crc32c import crc32c

from penstock.clock import Clock
from penstock.errors import BadSettings, Damaged, InvalidField, PenstockError, StorageError
from penstock.model import ACCESS_DIRECTORY, to_datetime
from penstock.replies import DataKeyView
from penstock.seals import KEY_BYTES, KEY_ID_BYTES, DataKey, Wrapper, aes
from penstock.storage.disk import Disk, ReadableDisk, RealDisk

DIRECTORY: Final = ACCESS_DIRECTORY
NAME: Final = f"{DIRECTORY}/data_keys.json"
FORMAT: Final = 1
PERIOD_SECONDS: Final = 30 * 86_400.0
COMMAND_SECONDS: Final = 30.0
NONCE_BYTES: Final = 12
PLUGIN: Final = "python:"
ENVIRONMENT: Final = ("PENSTOCK_MASTER_KEY", "PENSTOCK_KMS_COMMAND")

_ABOUT: Final = b"penstock data key\x01"
logger: Final = logging.getLogger("penstock.encryption")


class MasterKey:
    """A master key of 32 bytes in this process."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise BadSettings(f"master_key: a master key has {KEY_BYTES} bytes, not {len(secret)}", hint=_MAKE)
        self._cipher = aes().AESGCM(secret)

    def wrap(self, data: bytes, /) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + bytes(self._cipher.encrypt(nonce, data, _ABOUT))

    def unwrap(self, wrapped: bytes, /) -> bytes:
        return bytes(self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _ABOUT))


class CommandWrapper:
    """A command that is run with `wrap` or `unwrap` as its argument: bytes go in, and bytes come out."""

    def __init__(self, command: str) -> None:
        self._words = shlex.split(command)
        if not self._words:
            raise BadSettings("kms_command is empty", hint="set it to a program that wraps and unwraps keys")

    def wrap(self, data: bytes, /) -> bytes:
        return self._run("wrap", data)

    def unwrap(self, wrapped: bytes, /) -> bytes:
        return self._run("unwrap", wrapped)

    def _run(self, what: str, data: bytes) -> bytes:
        try:
            done = subprocess.run(  # noqa: S603 - it is the operator's own
                [*self._words, what], input=data, capture_output=True, timeout=COMMAND_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageError(f"kms_command cannot {what}: {type(error).__name__}", hint=_COMMAND) from None
        if done.returncode or not done.stdout:
            raise StorageError(f"kms_command cannot {what}: exit status {done.returncode}", hint=_COMMAND)
        return done.stdout


_MAKE: Final = "`penstock encryption init FILE` creates a key file"
_COMMAND: Final = "run it by hand: it gets `wrap` or `unwrap` as its argument and the bytes on its input"


def new_key_file(path: str | Path) -> None:
    """Make a key file that only its owner can read; one that is there is left as it is."""
    path = Path(path)
    disk = RealDisk(path.parent, mode=0o700)
    if disk.exists(path.name):
        raise InvalidField(f"{path} already exists", hint="choose another name: a master key is never overwritten")
    disk.write_whole(path.name, base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")


def read_key_file(path: str | Path) -> MasterKey:
    """The master key in a file: 32 bytes in base64, which nobody but the owner may read."""
    path = Path(path)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        text = RealDisk(path.parent).read(path.name)
    except (OSError, ValueError, PenstockError) as error:
        raise BadSettings(f"master_key: {path} cannot be read: {_reason(error)}", hint=_MAKE) from None
    if mode & 0o077:
        raise BadSettings(f"master_key: other users can read {path} (mode {mode:04o})", hint=f"chmod 600 {path}")
    try:
        return MasterKey(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError):
        raise BadSettings(f"master_key: {path} does not hold 32 bytes in base64", hint=_MAKE) from None


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def wrapper_of(
    master_key: str | Path | bytes | None = None, kms_command: str | None = None, keys: Wrapper | None = None
) -> Wrapper | None:
    """The master key that is named: here, or else in the environment; None when there is none."""
    given = [value for value in (master_key, kms_command, keys) if value]
    if len(given) > 1:
        raise BadSettings("master_key, kms_command and keys exclude each other", hint="keep one of them")
    if not given:
        master_key, kms_command = map(os.environ.get, ENVIRONMENT)
    if keys is not None:
        return keys
    if kms_command and not isinstance(kms_command, str):
        raise BadSettings(f"kms_command: {kms_command!r} is not a command", hint="it is text, as a shell takes it")
    if master_key and not isinstance(master_key, bytes | str | Path):
        raise BadSettings("master_key: it must be the path of a key file, or 32 bytes", hint=_MAKE)
    if kms_command:
        return _plugin(kms_command) if kms_command.startswith(PLUGIN) else CommandWrapper(kms_command)
    if isinstance(master_key, bytes):
        return MasterKey(master_key)
    return read_key_file(master_key) if master_key else None


def _plugin(text: str) -> Wrapper:
    """`python:package.module:object`: an object with `wrap` and `unwrap`, or a function that returns one."""
    module, _, name = text.removeprefix(PLUGIN).partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadSettings(f"kms_command: {text!r} cannot be imported: {error}") from None
    wrapper: Wrapper = found if hasattr(found, "unwrap") and not isinstance(found, type) else found()
    return wrapper


class StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key as the file holds it. An erased one has no `wrapped` any more."""

    id: str
    queue: int
    use: Literal["data", "root"]
    created_at: int
    wrapped: str = ""
    erased_at: int = 0
    name: str = ""  # of the queue, when the key was made; for people


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: int
    keys: list[StoredKey]
    crc32c: int = 0


class KeyRing:
    """The data keys of one directory. Safe to use from several threads."""

    def __init__(
        self,
        disk: Disk | ReadableDisk,
        wrapper: Wrapper,
        clock: Clock,
        *,
        period_seconds: float = PERIOD_SECONDS,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._wrapper = wrapper
        self._clock = clock
        self._period = round(period_seconds * 1_000_000)
        self._before_first = before_first
        self._lock = threading.RLock()
        self._stored: dict[bytes, StoredKey] = {}
        self._open: dict[bytes, DataKey] = {}
        self._current: dict[int, tuple[DataKey, int]] = {}
        self._roots: dict[int, bytes] = {}
        self._put(read_keys(disk))  # a wrong master key is found out now, not in the middle of a lease

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._stored)} keys>"

    # as `DataKeys`

    def current(self, queue: int) -> DataKey:
        known = self._current.get(queue)
        if known is not None and self._clock.now() - known[1] < self._period:
            return known[0]
        with self._lock:
            return self._renewed(queue)

    def find(self, id: bytes) -> DataKey | None:
        key = self._open.get(id)
        if key is not None:
            return key
        with self._lock:
            stored = self._stored.get(id)
            if stored is None:
                self._put(read_keys(self._disk))  # a reader beside the broker: it may have made one since
                stored = self._stored.get(id)
            if stored is None:
                hint = f"restore {NAME} from the backup that belongs to these files"
                raise StorageError(f"data key {id.hex()} is unknown", hint=hint)
            return None if stored.erased_at else self._opened(stored)

    def root(self, queue: int) -> bytes | None:
        id = self._roots.get(queue)
        if id is None:
            with self._lock:
                if queue not in self._roots:
                    self._save([*self._stored.values(), *self._new(queue, "root")])
                id = self._roots[queue]
        key = self.find(id)
        return None if key is None else key.secret

    # what operators do

    def keys_of(self, queues: Collection[int]) -> list[tuple[bytes, bytes]]:
        """The data keys of some queues by their ids, for who may read them; an erased one is empty."""
        with self._lock:
            return [
                (id, b"" if stored.erased_at else self._opened(stored).secret)
                for id, stored in self._stored.items()
                if stored.queue in queues and stored.use == "data"
            ]

    def describe(self, names: Mapping[int, str]) -> list[DataKeyView]:
        """All data keys, the oldest first; `names` are those of queues that exist."""
        newest = {queue: key.id for queue, (key, _) in self._current.items()}
        return [
            DataKeyView(
                stored.id,
                names.get(stored.queue, stored.name or f"#{stored.queue}"),
                to_datetime(stored.created_at),
                "erased" if stored.erased_at else "current" if newest.get(stored.queue) == id else "old",
            )
            for id, stored in self._stored.items()
            if stored.use == "data"
        ]

    def rotate(self, queue: int, name: str = "") -> str:
        """A new data key for what is written from now on; its id."""
        with self._lock:
            return self._add(queue, name).id.hex()

    def rewrap(self, wrapper: Wrapper) -> int:
        """Wrap all keys with another master key; no data is touched. How many."""
        with self._lock:
            live = [stored for stored in self._stored.values() if not stored.erased_at]
            keys = {stored.id: self._opened(stored) for stored in live}
            before, self._wrapper = self._wrapper, wrapper
            try:
                new = {id: self._wrapped(key) for id, key in keys.items()}
                self._save(
                    msgspec.structs.replace(stored, wrapped=new.get(stored.id, "")) for stored in self._stored.values()
                )
            except BaseException:
                self._wrapper = before
                raise
            return len(live)

    def erase(self, queue: int, before: int | None = None) -> int:
        """Erase the data keys of a queue, and so its messages, for good; returns how many.

        With `before` (µs) only keys that were followed by another by then.
        """
        with self._lock:
            chosen = self._chosen(queue, before)
            now = self._clock.now()
            self._save(
                msgspec.structs.replace(stored, wrapped="", erased_at=now) if stored.id in chosen else stored
                for stored in self._stored.values()
            )
            return len(chosen)

    def _chosen(self, queue: int, before: int | None) -> set[str]:
        live = [stored for stored in self._stored.values() if stored.queue == queue and not stored.erased_at]
        if before is None:
            return {stored.id for stored in live}
        data = sorted((stored for stored in live if stored.use == "data"), key=lambda stored: stored.created_at)
        return {old.id for old, new in pairwise(data) if new.created_at <= before}

    # within

    def _renewed(self, queue: int) -> DataKey:
        known = self._current.get(queue)
        if known is None:
            return self._add(queue)
        if self._clock.now() - known[1] < self._period:
            return known[0]
        try:
            return self._add(queue)
        except PenstockError as error:  # pushes go on with the old key rather than stop
            logger.warning("the data key of a queue is due for rotation, and no new one could be created: %s", error)
            return known[0]

    def _add(self, queue: int, name: str = "") -> DataKey:
        new = self._new(queue, "data", name)
        if queue not in self._roots:
            new = [*self._new(queue, "root", name), *new]
        self._save([*self._stored.values(), *new])
        return self._current[queue][0]

    def _new(self, queue: int, use: Literal["data", "root"], name: str = "") -> list[StoredKey]:
        key = DataKey(secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES))
        return [StoredKey(key.id.hex(), queue, use, self._clock.now(), self._wrapped(key), name=name)]

    def _wrapped(self, key: DataKey) -> str:
        return base64.b64encode(self._wrapper.wrap(key.id + key.secret)).decode()

    def _opened(self, stored: StoredKey) -> DataKey:
        id = bytes.fromhex(stored.id)
        key = self._open.get(id)
        if key is None:
            key = self._open[id] = self._unwrapped(stored)
        return key

    def _unwrapped(self, stored: StoredKey) -> DataKey:
        hint = "set the master key that wrapped it; nothing was changed"
        try:
            data = self._wrapper.unwrap(base64.b64decode(stored.wrapped))
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - of whatever stands for the master key
            raise StorageError(f"the master key does not open data key {stored.id}", hint=hint) from None
        if len(data) != KEY_ID_BYTES + KEY_BYTES or data[:KEY_ID_BYTES].hex() != stored.id:
            raise StorageError(f"the master key does not open data key {stored.id}", hint=hint)
        return DataKey(data[:KEY_ID_BYTES], data[KEY_ID_BYTES:])

    def _put(self, stored: Any) -> None:
        self._stored = {bytes.fromhex(key.id): key for key in stored}
        live = {id: key for id, key in self._stored.items() if not key.erased_at}
        self._open = {id: key for id, key in self._open.items() if id in live}
        self._roots = {key.queue: id for id, key in live.items() if key.use == "root"}
        self._current = {
            key.queue: (self._opened(key), key.created_at)
            for key in sorted(live.values(), key=lambda key: key.created_at)
            if key.use == "data"
        }

    def _save(self, stored: Any) -> None:
        keys = list(stored)
        if not self._stored:
            self._before_first()
        disk: Any = self._disk
        disk.make_directory(DIRECTORY)
        disk.write_whole(NAME, encode_keys(keys))
        self._put(keys)


def encode_keys(keys: list[StoredKey]) -> bytes:
    """The bytes of the file."""
    document = Document(FORMAT, keys)
    checked = msgspec.structs.replace(document, crc32c=crc32c(msgspec.json.encode(document)))
    return msgspec.json.format(msgspec.json.encode(checked), indent=1) + b"\n"


def read_keys(disk: ReadableDisk) -> list[StoredKey]:
    """The keys in the file, wrapped; none when there is no file. `Damaged` when it is not sound."""
    if not disk.exists(NAME):
        return []
    hint = "nothing was changed; restore the file from a backup"
    try:
        data = disk.read(NAME)
        version = json.loads(data).get("format")
        if version == FORMAT:
            document = msgspec.json.decode(data, type=Document)
            expected = crc32c(msgspec.json.encode(msgspec.structs.replace(document, crc32c=0)))
            if document.crc32c == expected:
                return document.keys
    except (ValueError, AttributeError, msgspec.MsgspecError):
        raise Damaged(f"{disk.root / NAME} cannot be read", hint=hint) from None
    if version != FORMAT:
        raise StorageError(f"{disk.root / NAME}: this version does not know format {version}")
    raise Damaged(f"{disk.root / NAME} does not match its checksum", hint=hint)


def has_live_keys(disk: ReadableDisk) -> bool:
    """Whether something in a directory is encrypted and can still be read."""
    return any(not key.erased_at for key in read_keys(disk))
