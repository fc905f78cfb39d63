"""The slow work: what a worker runs."""

from __future__ import annotations

import os

import penstock

app = penstock.App(os.environ.get("MAIL_QUEUE", "penstock://localhost:7710"))


@app.task(queue="mail", max_attempts=5, timeout=30)
async def send(to: str, subject: str) -> dict[str, str]:
    """Where a real one would speak to a mail server."""
    penstock.current_task().progress({"step": "connecting"})
    return {"to": to, "subject": subject, "status": "sent"}
