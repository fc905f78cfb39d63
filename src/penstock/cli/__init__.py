"""The command line. Commands print; what they do lives in the library.

Exit codes: 0 ok, 1 the user can fix it, 2 the storage cannot go on, 4 there is nothing there. An error is one line
and a hint, never a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    from penstock.cli.app import run

    return run(arguments)
