"""Checks of a server before it is used. Each refusal says what to change."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import StoreRefused, StoreUnavailable
from penstock.postgres.link import Link
from penstock.postgres.links import Links

logger: Final = logging.getLogger("penstock.store")

VERSION_MIN: Final = 130_000
PROBES: Final = 8  # statements between which a pooler may give the session to somebody else
PROBE_SECONDS: Final = 3.0
SESSIONS: Final = 5  # that a node has at once
POOL: Final = f"connect to PostgreSQL directly, or pool sessions (pool_mode = session), {SESSIONS} for each node"

_OFF: Final = """
    SELECT name FROM pg_settings WHERE setting = 'off' AND name IN ('fsync', 'full_page_writes') ORDER BY name"""
# Every session sets this one itself; this is what the configuration says.
_RESET: Final = """
    SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val = 'off'
        AND NOT EXISTS (SELECT 1 FROM pg_db_role_setting WHERE setconfig::text LIKE '%synchronous_commit%')"""
_STANDBYS: Final = """
    SELECT DISTINCT sync_state FROM pg_stat_replication
    WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')"""


def check_server(links: Links, *, replicated: bool) -> None:
    """Refuse a server that may lose what it confirms."""
    with links.borrowed() as link:
        _check_version(link)
        _check_durability(link)
        if replicated:
            _check_standbys(link)
        if is_pooled(link):
            _check_pooler(links)


def _check_version(link: Link) -> None:
    if link.server_version < VERSION_MIN:
        raise StoreRefused(f"PostgreSQL {link.server_version // 10_000} is too old", hint="use 13 or newer")


def _check_durability(link: Link) -> None:
    off = [name for (name,) in link.rows(_OFF)]
    if link.one(_RESET) != (0,):
        off.append("synchronous_commit")
    if off:
        raise StoreRefused(
            f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} off: commits that PostgreSQL confirms may be lost",
            hint=f"set {' and '.join(f'{name} = on' for name in off)} in postgresql.conf",
        )


def _check_standbys(link: Link) -> None:
    row = link.one("SELECT pg_has_role(current_user, 'pg_monitor', 'member')")
    if row != (True,):
        raise StoreRefused(
            "replicated: the role lacks the right to see whether standbys are synchronous",
            hint="GRANT pg_monitor TO the role",
        )
    states = link.rows(_STANDBYS)
    if ("quorum",) in states:
        logger.warning(
            "standbys confirm commits as a quorum: a primary that was suspended may confirm commits that are lost;"
            ' with Patroni, set synchronous_mode: "on"'
        )
    if not states:
        raise StoreRefused(
            "replicated: no standby is synchronous, so a commit would be on one machine only",
            hint="set synchronous_standby_names, as docs/postgresql.md shows, or start without replicated",
        )


def is_pooled(link: Link) -> bool:
    """Whether a pooler is between this process and the server."""
    return link.one("SELECT pg_backend_pid()") != (link.announced_pid,)


def _check_pooler(links: Links) -> None:
    """Refuse a pooler that shares sessions between two statements, or that has too few of them."""
    sessions: list[Link] = []
    try:
        sessions.extend(links.new(statement_seconds=PROBE_SECONDS) for _ in range(SESSIONS))
        _check_sessions(*sessions[:2])
    except StoreUnavailable as error:
        raise StoreRefused(f"a pooler in front of PostgreSQL does not pass on: {error.message}", hint=POOL) from None
    finally:
        for each in sessions:
            each.close()


def _check_sessions(link: Link, other: Link) -> None:
    mine = link.one("SELECT pg_backend_pid()")
    for _ in range(PROBES):
        other.begin()
        other.one("SELECT 1")
        is_shared = link.one("SELECT pg_backend_pid()") != mine
        other.rollback()
        if is_shared:
            raise StoreRefused("a pooler in front of PostgreSQL is in transaction mode: sessions are shared", hint=POOL)
