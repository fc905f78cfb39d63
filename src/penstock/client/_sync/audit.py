# Generated from penstock/client/_async/audit.py by `make generate`. Do not edit.
"""The audit log of an open system."""

from __future__ import annotations

from datetime import datetime

from penstock import operations as ops
from penstock.client.session import Session
from penstock.model_audit import AuditRecord, AuditVerification


class Audit:
    """Who did what: records of the queue `penstock.audit`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(
        self,
        *,
        who: str | None = None,
        what: str | None = None,
        outcome: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[AuditRecord]:
        """Records, newest first. `outcome` is `ok`, `failed` for every error, or the code of one."""
        return self._session.execute(ops.ListAudit(who, what, outcome, since, limit))

    def verify(self) -> AuditVerification:
        """Check the whole chain: what was changed, removed or moved is named in `problems`."""
        return self._session.execute(ops.VerifyAudit())
