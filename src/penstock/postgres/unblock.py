"""A takeover does not wait for what a former owner left half done.

A session of it may hold the row of the shard while PostgreSQL waits for the rest of a statement from a client that is
frozen or cut off. The session is ended, which rolls its transaction back: the same would happen when the server notices
the loss by itself. The fence stays as it is: the term is raised only once nobody holds the row. A commit that waits for
its standbys when it is ended counts as done on this server; the commit of the takeover comes after it in the same log
and waits for the same standbys.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import StorageError
from penstock.postgres.link import Link, session_name
from penstock.postgres.links import Links

logger: Final = logging.getLogger("penstock.store")

PATIENCE_SECONDS: Final = 0.5  # that a takeover waits for a lock before it looks who holds it

_END_BLOCKERS: Final = """
    SELECT pid, CASE WHEN application_name = $2 THEN pg_terminate_backend(pid) END FROM pg_stat_activity
    WHERE pid = ANY(pg_blocking_pids($1::integer))"""


@contextmanager
def unblocked(links: Links, link: Link, owner: str) -> Iterator[None]:
    """While `link` waits for a lock inside the block, sessions of the node `owner` that hold it are ended."""
    row = link.one("SELECT pg_backend_pid()")
    assert row is not None
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(links, row[0], owner, over), name="penstock-takeover", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(links: Links, pid: int, owner: str, over: threading.Event) -> None:
    while not over.wait(PATIENCE_SECONDS):
        try:
            with links.borrowed() as link:
                ended = link.rows(_END_BLOCKERS, pid, session_name(owner))
        except StorageError as error:
            logger.warning("the takeover waits for the former owner: %s", error, extra={"owner": owner})
            continue
        for session, is_ended in ended:
            about = {"owner": owner, "session": session}
            if is_ended:
                logger.info("ended a session of the former owner that held the shard", extra=about)
            else:
                logger.warning("the takeover waits for a foreign session that holds the shard", extra=about)
