"""Writes `_sync` from `_async`: the same code without `async` and `await`, on threads instead of tasks.

Where one class has both faces, names of `_async` that begin with an `a` for asyncio lose it: `aresult` is `result`.

Run it as `python -m penstock.client.generate`, which is what `make generate` does; with `--check` it only compares, and
says which files are stale.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("client", "tasks")
NOTICE: Final = "# Generated from penstock/{package}/_async/{name} by `make generate`. Do not edit.\n"

REPLACEMENTS: Final = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\baclosing\b", "closing"),
    (r"\bAsyncExitStack\b", "ExitStack"),
    (r"\benter_async_context\b", "enter_context"),
    (r"\bAsyncGenerator\[(\w+)\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable\[([\w |]+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsync(Session|Pipeline|\w+Calls)\b", r"\1"),
    (r"\bpenstock\.(\w+)\._async\b", r"penstock.\1._sync"),
    (r"\bopen_async_session\b", "open_session"),
    (r"\basynchronous\(", "blocking("),
    (r"\bawait_task\b", "wait_task"),
    (r"\bpenstock\.client\.task_runtime\b", "penstock.client.thread_runtime"),
)


def sync_text(package: str, name: str, text: str) -> str:
    """The text of a module of `_sync`."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    if package == "tasks":
        text = re.sub(rf"\b(_?)a({'|'.join(_twin_names())})\b", r"\1\2", text)
    return NOTICE.format(package=package, name=name) + text


@cache
def _twin_names() -> list[str]:
    """What the calls on tasks are called without the `a`."""
    texts = [source.read_text(encoding="utf-8") for source in (ROOT / "tasks" / "_async").glob("[a-z]*.py")]
    return sorted({name for text in texts for name in re.findall(r"def _?a(\w+)\(", text)} - {"wait_task"})


def stale(write: bool) -> list[str]:
    """The modules of `_sync` that are not what `_async` says; written if asked for."""
    names = []
    for package in PACKAGES:
        for source in sorted((ROOT / package / "_async").glob("[a-z]*.py")):
            target = ROOT / package / "_sync" / source.name
            text = sync_text(package, source.name, source.read_text(encoding="utf-8"))
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                names.append(f"{package}/_sync/{target.name}")
                if write:
                    target.write_text(text, encoding="utf-8")
    return names


def main() -> int:
    """Write, or with --check only compare."""
    is_check = "--check" in sys.argv[1:]
    names = stale(write=not is_check)
    for name in names:
        sys.stdout.write(f"{'stale' if is_check else 'written'}: {name}\n")
    return 1 if is_check and names else 0


if __name__ == "__main__":
    sys.exit(main())
