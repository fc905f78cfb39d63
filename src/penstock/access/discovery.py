"""How the owner's own programs find the key of a broker that runs on the same machine, and prove it.

A broker makes a key for each run. After it listens, it writes an entry into the user's runtime directory, which only
that user can read, and removes it when it stops. A client that connects to exactly that address, and has no other
token, finds the entry.

The key is never sent. Somebody else may listen at that address by now, so the broker proves first that it has the key:

    client                                  broker
      │ nonce                                 │
      │──────────────────────────────────────▶│
      │        nonce, HMAC("broker", both)    │
      │◀──────────────────────────────────────│
      │ HMAC("client", both)                  │
      │──────────────────────────────────────▶│

Both proofs are about the run and about the address at which they are exchanged: one that was obtained through a tunnel
proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.access.keys import make_key

ENTRY_BYTES_MAX: Final = 4096
CLIENT: Final = "client"
BROKER: Final = "broker"


class Entry(msgspec.Struct, frozen=True):
    """One run of a broker, as its owner's programs find it."""

    run: str
    key: str
    pid: int = 0

    def __repr__(self) -> str:
        return f"Entry({self.run!r})"

    def proof(self, side: str, client_nonce: str, broker_nonce: str, place: str) -> str:
        """What only who has the key can compute."""
        parts = (side, self.run, place, client_nonce, broker_nonce)
        text = b"".join(b"%d:%b" % (len(part), part) for part in (each.encode() for each in parts))
        return hmac.new(self.key.encode(), text, hashlib.sha256).hexdigest()

    def is_proof(self, proof: str, side: str, client_nonce: str, broker_nonce: str, place: str) -> bool:
        """Whether this is that proof; takes the same time either way."""
        return hmac.compare_digest(proof.encode(), self.proof(side, client_nonce, broker_nonce, place).encode())


def new_entry() -> Entry:
    """The entry of a run that begins."""
    run = "run" + secrets.token_hex(6)
    return Entry(run, make_key(run).text, os.getpid())


def new_nonce() -> str:
    """A number that is used once."""
    return secrets.token_hex(16)


def place_of(host: str, port: int) -> str:
    """How an address is written in proofs and in names of entries."""
    return f"{host.partition('%')[0]}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# Directories.


def directories(environment: Mapping[str, str]) -> Iterator[Path]:
    """Where entries may be, the best first: the session's runtime directory, or the user's state directory.

    Cron, containers and root often have no runtime directory; a directory for temporary files is never used.
    """
    given = environment.get("XDG_RUNTIME_DIR")
    if given and os.path.isabs(given):
        yield Path(given) / "penstock"
    usual = Path(f"/run/user/{os.getuid()}")
    if usual.is_dir():
        yield usual / "penstock"
    state = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        yield Path(state) / "penstock"
        return
    home = environment.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home):
        yield Path(home) / ".local" / "state" / "penstock"


def _file_of(directory: Path, place: str) -> Path:
    return directory / f"{place.replace(':', '-')}.json"


def _is_private(path: Path) -> bool:
    """Whether a file or directory belongs to this user, and nobody else may read or write it."""
    status = os.lstat(path)
    is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return is_plain and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077


# The client's side.


def find(host: str, port: int, environment: Mapping[str, str]) -> Entry | None:
    """The entry of the broker at this address, which must be the one that the connection has; None: there is none."""
    if not is_loopback(host):
        return None
    for directory in directories(environment):
        path = _file_of(directory, place_of(host, port))
        with suppress(OSError, msgspec.MsgspecError):
            if _is_private(directory) and _is_private(path):
                return msgspec.json.decode(path.read_bytes()[:ENTRY_BYTES_MAX], type=Entry)
    return None


def find_header(hosts: Iterable[str], port: int, environment: Mapping[str, str]) -> Path | None:
    """The header file of the broker that listens at one of these addresses; None: there is none."""
    for host in hosts:
        for directory in directories(environment):
            path = _file_of(directory, place_of(host, port)).with_suffix(".header")
            with suppress(OSError):
                if is_loopback(host) and _is_private(directory) and _is_private(path):
                    return path
    return None


# The broker's side.


class Announcement:
    """The entries of a broker that runs: one for each address, and a header file for curl.

    Without an entry, for a broker without access control, it only removes what a broker that was killed has left.
    """

    def __init__(self, entry: Entry | None, environment: Mapping[str, str]) -> None:
        self._entry = entry
        self._environment = environment
        self._directory = None if entry is None else _usable_directory(environment)
        self._files: list[Path] = []
        self.header_file: Path | None = None  # with the header that curl needs: `curl -H @<file>`

    def add(self, places: Iterable[str]) -> None:
        """The broker listens at these addresses: called before anybody who connects there is answered."""
        for place in places:
            for directory in directories(self._environment):
                with suppress(OSError):
                    _file_of(directory, place).unlink()
            if self._directory is not None and self._entry is not None:
                path = _file_of(self._directory, place)
                self._write(path, msgspec.json.encode(self._entry))
                self.header_file = path.with_suffix(".header")

    def write_header(self) -> None:
        """Write the header file; it has the name of the last address."""
        if self.header_file is not None and self._entry is not None:
            self._write(self.header_file, f"Authorization: Bearer {self._entry.key}\n".encode())

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.write(fd, data)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self._files.append(path)

    def remove(self) -> None:
        """Remove the entries, unless another broker has replaced them meanwhile."""
        for path in self._files:
            with suppress(OSError):
                if self._entry is not None and self._entry.run.encode() in path.read_bytes():
                    path.unlink()
        self._files.clear()


def _usable_directory(environment: Mapping[str, str]) -> Path | None:
    for directory in directories(environment):
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if directory.stat().st_uid == os.getuid():
                os.chmod(directory, 0o700)
                if _is_private(directory):
                    return directory
    return None
