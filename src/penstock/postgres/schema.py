"""The tables of a store, their version, and migrations from older versions.

    penstock.store           one row: the version, the id of the store, the deployment that it belongs to
    penstock.shards          shard, id, owner, term; changes only at a takeover. Locking it is what fences a change
    penstock.nodes           node, address, counter; the heartbeats
    penstock.files           shard, name → file, bytes, term: everything that is a file in a data directory
    penstock.file_data       file, chunk → bytes
    penstock.journal_files   shard, first_sequence → header; one per table below
    penstock.journal_<shard>_<20 digits>   position → sequence, end_sequence, term, data: a journal file

docs/formats/postgresql.md has the same in prose.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from penstock.errors import BadSettings, NotADataDirectory, StorageError, StoreRefused
from penstock.postgres.link import Link
from penstock.storage.journal_files import name_of

VERSION: Final = 1
SHARD: Final = 0  # the only one, so far

# From one version to the next; the first creates everything.
MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE SCHEMA IF NOT EXISTS penstock;
    CREATE TABLE penstock.store (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        version integer NOT NULL, id bytea NOT NULL, deployment text NOT NULL);
    CREATE TABLE penstock.shards (
        shard integer PRIMARY KEY, id bytea NOT NULL, owner text NOT NULL DEFAULT '', term bigint NOT NULL DEFAULT 0,
        renewals bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
    CREATE TABLE penstock.nodes (
        node text PRIMARY KEY, address text NOT NULL, counter bigint NOT NULL DEFAULT 0, backend integer NOT NULL,
        durable_sequence bigint NOT NULL DEFAULT 0, request text NOT NULL DEFAULT '') WITH (fillfactor = 50);
    CREATE TABLE penstock.files (
        shard integer NOT NULL, name text COLLATE "C" NOT NULL, file bigint NOT NULL, bytes bigint NOT NULL,
        term bigint NOT NULL, PRIMARY KEY (shard, name));
    CREATE TABLE penstock.file_data (
        file bigint NOT NULL, chunk integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (file, chunk));
    ALTER TABLE penstock.file_data ALTER data SET STORAGE EXTERNAL;
    CREATE SEQUENCE penstock.file_ids;
    CREATE TABLE penstock.journal_files (
        shard integer NOT NULL, first_sequence bigint NOT NULL, header bytea NOT NULL,
        dropped boolean NOT NULL DEFAULT false, PRIMARY KEY (shard, first_sequence));
    """,
)
# Two nodes may start at once.
LOCK: Final = 0x50454E53544F434B


class Status(NamedTuple):
    """The description of a store. Version 0: there is none yet."""

    version: int
    id: bytes = b""
    deployment: str = ""


def status_of(link: Link) -> Status:
    """The version of a store; refused when the schema belongs to something else."""
    if link.one("SELECT to_regclass('penstock.store')::oid::bigint")[0] is None:  # type: ignore[index] # one row, always
        foreign = link.one(
            "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('penstock')"
            " ORDER BY relname <> 'store' LIMIT 1"
        )
        if foreign == ("store",):  # another node has made it since
            return status_of(link)
        if foreign is not None:
            raise NotADataDirectory(
                f"the schema penstock holds {foreign[0]!r} and is not a Penstock store",
                hint="use another database, or remove that schema",
            )
        return Status(0)
    row = link.one("SELECT version, id, deployment FROM penstock.store")
    if row is None:
        raise StorageError(
            "penstock.store has no row: the store was not created completely",
            hint="complete it with `penstock store init`",
        )
    return Status(*row)


def prepare(link: Link, deployment: str, *, migrate: bool = True) -> Status:
    """Create the store, or migrate it to this version; `migrate=False` only checks. Safe to run concurrently."""
    status = status_of(link)
    if status.version < VERSION and migrate:
        status = _migrate(link, deployment)
    check(status, deployment)
    return status


def check(status: Status, deployment: str) -> None:
    """Refuse a store of another version or deployment."""
    if status.version > VERSION:
        raise StorageError(
            f"the store has version {status.version}, but this Penstock supports up to {VERSION}",
            hint="upgrade Penstock on this node",
        )
    if status.version < VERSION:
        raise StorageError(
            f"the store has version {status.version} and not {VERSION}", hint="upgrade it with `penstock store migrate`"
        )
    if deployment and status.deployment != deployment:
        raise BadSettings(
            f"store: it belongs to the deployment {status.deployment!r}, but this node to {deployment!r}",
            hint="use another database, or set deployment to the same name",
        )


def _migrate(link: Link, deployment: str) -> Status:
    link.begin()
    try:
        link.rows("SELECT pg_advisory_xact_lock($1)::text", LOCK)
        status = status_of(link)  # somebody else may have done it
        for number in range(status.version, VERSION):
            for statement in filter(str.strip, MIGRATIONS[number].split(";")):
                link.execute(statement)
        if status.version == 0:
            status = Status(VERSION, os.urandom(16), deployment or "penstock")
            link.execute("INSERT INTO penstock.store (version, id, deployment) VALUES ($1, $2, $3)", *status)
            link.execute("INSERT INTO penstock.shards (shard, id) VALUES ($1, $2)", SHARD, os.urandom(16))
        elif status.version < VERSION:
            status = status._replace(version=VERSION)
            link.execute("UPDATE penstock.store SET version = $1", VERSION)
        link.commit()
    except StoreRefused as error:
        link.rollback()
        if error.sqlstate == "42501":
            raise StorageError(
                error.message,
                hint="run CREATE SCHEMA penstock AUTHORIZATION role, or `penstock store init` as its owner",
            ) from None
        raise
    return status


def journal_table(shard: int, first_sequence: int) -> str:
    """The table of a journal file."""
    return f"penstock.journal_{shard}_{first_sequence:020d}"


def create_journal_table(shard: int, first_sequence: int) -> tuple[str, ...]:
    """The statements that create it. Its rows are never changed, so there is nothing to vacuum."""
    table = journal_table(shard, first_sequence)
    return (
        f"""CREATE TABLE IF NOT EXISTS {table} (position bigint PRIMARY KEY, sequence bigint NOT NULL,
        end_sequence bigint NOT NULL, term bigint NOT NULL, data bytea NOT NULL)
        WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)""",
        f"ALTER TABLE {table} ALTER data SET STORAGE EXTERNAL",
    )


def journal_name(first_sequence: int) -> str:
    """The name of the file, as in a data directory, without its directory."""
    return name_of(first_sequence).rpartition("/")[2]
