"""Reading a store in PostgreSQL while no node owns it: for `penstock verify` and `penstock doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import DirectoryInUse, InvalidField, NotADataDirectory
from penstock.postgres import schema
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.link import Link
from penstock.postgres.links import Links
from penstock.postgres.store import is_connected
from penstock.postgres.target import Target, parse_store_url
from penstock.storage import pins
from penstock.storage.disk import Disk
from penstock.storage.journal_files import name_of

_WITH_TABLES: Final = """
    SELECT first_sequence FROM penstock.journal_files WHERE shard = $1 AND NOT dropped
        AND to_regclass('penstock.journal_' || shard || '_' || lpad(first_sequence::text, 20, '0')) IS NOT NULL
    ORDER BY 1"""
_OWNER: Final = "SELECT owner FROM penstock.shards WHERE shard = $1"


def require_store(link: Link) -> None:
    """Refuse a database without a store, and a store of another version."""
    status = schema.status_of(link)
    if status.version == 0:
        raise NotADataDirectory("the database contains no Penstock data", hint="check that this is the right database")
    schema.check(status, "")


def checked_target(url: str) -> Target:
    """The store of a URL on the command line. A password in it is refused: other users of the machine could see it."""
    target = parse_store_url(url)
    if target.has_password:
        hint = "remove it and use PGPASSFILE or PGPASSWORD"
        raise InvalidField(f"{target.shown}: the URL contains a password", hint=hint)
    return target


class LookedAt(PostgresDisk):
    """The files of a store that may be damaged: a journal file whose table is gone counts as missing."""

    def journal_files(self) -> list[int]:
        return [first for (first,) in self._links.ask(lambda link: link.rows(_WITH_TABLES, self._shard))]

    def names(self) -> list[str]:
        """The names of all files, except the pins of readers."""
        sql = "SELECT name FROM penstock.files WHERE shard = $1 ORDER BY name"
        names = [name for (name,) in self._links.ask(lambda link: link.rows(sql, self._shard))]
        kept = [name for name in names if not name.startswith(f"{pins.DIRECTORY}/")]
        return [*kept, *(name_of(first) for first in self.journal_files())]


def copy_to(store: LookedAt, disk: Disk, on_progress: Callable[[int, int], object]) -> None:
    """Copy all files of a store to an empty directory as they are, damaged or not."""
    names = store.names()
    for number, name in enumerate(names):
        parts = name.split("/")[:-1]
        for depth in range(len(parts) + 1):
            disk.make_directory("/".join(parts[:depth]))
        disk.write_whole(name, store.read(name))
        on_progress(number + 1, len(names))


@contextmanager
def unowned(url: str, role: str) -> Iterator[LookedAt]:
    """The files of a store that no live node owns, read-only."""
    target = checked_target(url)
    links = Links(target, role)
    try:
        links.ask(require_store)
        with links.borrowed() as link:
            row = link.one(_OWNER, schema.SHARD)
            if row is not None and row[0] and is_connected(link, row[0]):
                raise DirectoryInUse(f"{target.shown} is in use by the node {row[0]!r}", hint="stop it first")
        yield LookedAt(links)
    finally:
        links.close()
