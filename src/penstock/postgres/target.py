"""The URL of a PostgreSQL store, its hosts, and its errors as users see them."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from penstock.clock import Clock, SystemClock
from penstock.errors import DiskFull, InvalidField, NotADataDirectory, StorageError, StoreRefused
from penstock.extras import postgres_extra
from penstock.model import is_store_url
from penstock.storage.disk import RealDisk

T = TypeVar("T")

SILENT_SECONDS: Final = 5.0  # for which a host that did not answer is skipped
HINT: Final = "postgresql://USER@HOST:PORT/DATABASE, with several HOST:PORT separated by commas"

# Added unless the URL has them: use the primary among several hosts, and detect a lost peer.
DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_REMEDIES: Final = {
    "28P01": "the password is wrong: set the right one in PENSTOCK_STORE, PGPASSFILE or the password file",
    "28000": "the role may not connect: see pg_hba.conf, and the role's LOGIN",
    "3D000": "create the database first: CREATE DATABASE …",
    "42501": "the role lacks rights: docs/postgresql.md lists what it needs",
    "53300": "raise max_connections: a node needs five connections",
    "25006": "this server is read-only: use the primary, or all hosts with target_session_attrs=read-write",
}
# A refused connection has no code, only a message.
_NO_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')
_WORDS: Final = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    "is not permitted to log in": "28000",
    "no pg_hba.conf entry": "28000",
    "pg_hba.conf rejects": "28000",
    "too many clients": "53300",
    "remaining connection slots": "53300",
    "too many connections": "53300",
    "session is read-only": "25006",
}


class Hosts:
    """The connection strings of one store, one for each host, tried in their order. Threads share what is known.

    A machine that died does not answer, and an attempt to connect takes the whole timeout. During a failover a node
    tries to connect repeatedly, and must not spend that time on the dead machine. So a host that did not answer is
    skipped for a while, unless all hosts are. A host that refuses or is read-only answers at once and is always tried.
    """

    def __init__(self, conninfos: tuple[str, ...], clock: Clock | None = None) -> None:
        self.conninfos = conninfos
        self._clock = clock or SystemClock()
        self._left_out: dict[str, int] = {}  # until when

    def connect(self, connect: Callable[[str], T], failure: type[Exception], silence: tuple[type[Exception], ...]) -> T:
        """Return the first connection that succeeds; raises the error of the last host, with those of the others."""
        failures: list[Exception] = []
        for conninfo in self._in_turn():
            if conninfo in self._left_out:
                self._leave_out(conninfo)  # so that other threads do not wait for it too
            try:
                connection = connect(conninfo)
            except failure as error:
                if isinstance(error, silence):
                    self._leave_out(conninfo)
                failures.append(error)
            else:
                self._left_out.pop(conninfo, None)
                return connection
        if len(failures) > 1:
            failures[-1].args = ("; ".join(dict.fromkeys(str(error).strip() for error in failures)),)
        raise failures[-1]

    def _in_turn(self) -> list[str]:
        now = self._clock.monotonic()
        answering = [conninfo for conninfo in self.conninfos if self._left_out.get(conninfo, now) <= now]
        return answering or list(self.conninfos)

    def _leave_out(self, conninfo: str) -> None:
        self._left_out[conninfo] = self._clock.monotonic() + round(SILENT_SECONDS * 1_000_000)


class Target(NamedTuple):
    """A PostgreSQL to connect to. `shown` is for people and has no password."""

    hosts: Hosts
    shown: str
    has_password: bool


def read_password(path: str) -> str:
    """The password in a file; `InvalidField` when others may read it."""
    file = Path(path)
    try:
        if file.stat().st_mode & stat.S_IRWXO:
            raise InvalidField(f"store_password_file: other users can read {path!r}", hint=f"chmod 600 {path}")
        return RealDisk(file.parent).read(file.name).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError, StorageError) as error:
        raise InvalidField(f"store_password_file: {path!r} cannot be read: {error}") from None


def parse_store_url(url: str, password: str | None = None) -> Target:
    """Check a URL and complete it; `InvalidField` says what is wrong. `password` is one that the URL does not have."""
    if not is_store_url(url):
        raise InvalidField(f"store: {_scheme(url)!r} is not a supported store", hint=HINT)
    with postgres_extra("a store in PostgreSQL"):
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    try:
        known = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidField(f"store: not a PostgreSQL URL: {str(error).strip()}", hint=HINT) from None
    missing = {} if password is None else {"password": password}
    missing |= {name: value for name, value in DEFAULTS.items() if name not in known}
    hosts = str(known.get("host") or known.get("hostaddr") or "local socket")
    ports = str(known.get("port") or "")
    shown = f"postgresql://{_places(hosts, ports)}/{known.get('dbname') or ''}"
    each = tuple(make_conninfo(url, **missing, **one) for one in _one_by_one(known))
    return Target(Hosts(each), shown, known.get("password") is not None)


def _one_by_one(known: Mapping[str, object]) -> list[dict[str, str]]:
    """What differs between the hosts of a URL: their name, their address and their port."""
    lists = {name: str(known[name]).split(",") for name in ("host", "hostaddr", "port") if known.get(name)}
    count = max((len(values) for name, values in lists.items() if name != "port"), default=1)
    if any(len(values) not in (1, count) for values in lists.values()):
        return [{}]  # libpq says what is wrong with it
    return [{name: values[min(index, len(values) - 1)] for name, values in lists.items()} for index in range(count)]


def _scheme(url: object) -> str:
    text = str(url)
    return urlsplit(text).scheme or text.partition("://")[0]


def _places(hosts: str, ports: str) -> str:
    names, numbers = hosts.split(","), ports.split(",")
    if len(numbers) == 1:
        numbers *= len(names)
    return ",".join(f"{name}:{number}" if number else name for name, number in zip(names, numbers, strict=False))


def server_error(state: str | None, message: str, target: Target) -> StorageError:
    """The error that users see for one of the server."""
    text = f"{target.shown}: {' '.join(message.split())}"
    if state == "53100":
        return DiskFull(text, hint="PostgreSQL's disk is full: free some space")
    if state == "3D000" or (state is None and _NO_DATABASE.search(message)):
        return NotADataDirectory(text, hint=_REMEDIES["3D000"])
    error = StoreRefused(text, hint=_remedy(state, message))
    error.sqlstate = state or ""
    return error


def _remedy(state: str | None, message: str) -> str:
    if state in _REMEDIES:
        return _REMEDIES[state]
    known = next((code for words, code in _WORDS.items() if words in message), None)
    return "check that PostgreSQL is running and the address is right" if known is None else _REMEDIES[known]
