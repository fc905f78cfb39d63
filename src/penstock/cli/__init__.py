"""The command line. Commands print; what they do lives in the library.

Exit codes: 0 ok, 1 the user can fix it, 2 the broker or the storage cannot go on, 3 not authorised, 4 there is nothing
there. An error is one line and a hint, never a traceback. What takes long to load (NumPy, Arrow, the server) is
imported inside the functions that need it, so that `--help` and completion answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    from penstock.cli.app import run

    return run(arguments)
