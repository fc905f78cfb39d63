"""A store in PostgreSQL that is looked at while no node owns it: by `penstock verify` and `penstock doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import DirectoryInUse, InvalidField, NotADataDirectory
from penstock.postgres import schema
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.link import Link
from penstock.postgres.links import Links
from penstock.postgres.store import is_connected
from penstock.postgres.target import Target, parse_store_url

_OWNER: Final = "SELECT owner FROM penstock.shards WHERE shard = $1"


def require_store(link: Link) -> None:
    """Refuse a database without a store, and a store of another version."""
    status = schema.status_of(link)
    if status.version == 0:
        raise NotADataDirectory("the database holds no data of Penstock", hint="is it the right database?")
    schema.check(status, "")


def checked_target(url: str) -> Target:
    """The store that a URL on a command line names; a password is refused: others on the machine could see it."""
    target = parse_store_url(url)
    if target.has_password:
        hint = "leave it out: PGPASSFILE names a file with it, or PGPASSWORD has it"
        raise InvalidField(f"{target.shown}: the URL contains a password", hint=hint)
    return target


@contextmanager
def unowned(url: str, role: str) -> Iterator[PostgresDisk]:
    """The files of a store that no node has at work. Nothing can be changed."""
    target = checked_target(url)
    links = Links(target, role)
    try:
        links.ask(require_store)
        with links.borrowed() as link:
            row = link.one(_OWNER, schema.SHARD)
            if row is not None and row[0] and is_connected(link, row[0]):
                raise DirectoryInUse(f"{target.shown} is in use by the node {row[0]!r}", hint="stop it first")
        yield PostgresDisk(links)
    finally:
        links.close()
