"""Operations on the audit log."""

from __future__ import annotations

from penstock.model_audit import AuditRecord, AuditVerification
from penstock.operations.base import Action, Operation, operation
from penstock.operations.types import Instant, Limit


@operation(
    Action.OPERATE,
    http="GET /audit",
    route="list_audit",
    reply="records",
    errors=("invalid_field",),
    example={"who": "ann", "outcome": "failed", "limit": 20},
)
class ListAudit(Operation[list[AuditRecord]], frozen=True):
    """Records of the audit log, newest first.

    `outcome` is `ok`, `failed` for every error, or the code of one; `since` is a time.
    """

    who: str | None = None
    what: str | None = None
    outcome: str | None = None
    since: Instant | None = None
    limit: Limit = 100


@operation(Action.OPERATE, http="GET /audit/verify", route="get_audit_verification")
class VerifyAudit(Operation[AuditVerification], frozen=True):
    """Check the chain of the whole audit log.

    A record that was changed, removed or moved is named among the `problems`.
    """
