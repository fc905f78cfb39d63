"""Writes `_sync` from `_async`: the same code without `async` and `await`, on threads instead of tasks.

Run it as `python -m penstock.client.generate`, which is what `make generate` does; with `--check` it only compares, and
says which files are stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parent
NOTICE: Final = "# Generated from penstock/client/_async/{name} by `make generate`. Do not edit.\n"

REPLACEMENTS: Final = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\baclosing\b", "closing"),
    (r"\bAsyncGenerator\[(\w+)\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync(Session|Pipeline)\b", r"\1"),
    (r"\bpenstock\.client\._async\b", "penstock.client._sync"),
    (r"\bpenstock\.client\.task_runtime\b", "penstock.client.thread_runtime"),
)


def sync_text(name: str, text: str) -> str:
    """The text of a module of `_sync`."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return NOTICE.format(name=name) + text


def stale(write: bool) -> list[str]:
    """The modules of `_sync` that are not what `_async` says; written if asked for."""
    found = []
    for source in sorted((HOME / "_async").glob("[a-z]*.py")):
        target = HOME / "_sync" / source.name
        text = sync_text(source.name, source.read_text(encoding="utf-8"))
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            found.append(target.name)
            if write:
                target.write_text(text, encoding="utf-8")
    return found


def main() -> int:
    """Write, or with --check only compare."""
    is_check = "--check" in sys.argv[1:]
    found = stale(write=not is_check)
    for name in found:
        sys.stdout.write(f"{'stale' if is_check else 'written'}: _sync/{name}\n")
    return 1 if is_check and found else 0


if __name__ == "__main__":
    sys.exit(main())
