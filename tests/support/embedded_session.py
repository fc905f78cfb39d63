"""Behind a handle: the embedded session that tests look into."""

from __future__ import annotations

from typing import Any

from penstock.embedded.session import Session


def session_of(handle: Any) -> Session:
    """The session of an embedded Penstock or queue, of either face."""
    session: Any = handle._session
    found: Session = session if isinstance(session, Session) else session.session
    return found
