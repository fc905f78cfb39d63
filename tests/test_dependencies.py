"""Versions of what Penstock is built on: none that has a hole which is known and mended.

CI cannot ask a database of vulnerabilities, so the first sound versions are written down here. Where it can be reached,
`pip-audit` finds new ones.
"""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

PYPROJECT: Final = Path(__file__).parent.parent / "pyproject.toml"
# The first version without the hole.
SOUND: Final = {
    "cryptography": "50",  # CVE-2026-69247
    "grpcio": "1.66.2",  # CVE-2024-11407
    "protobuf": "5.29.5",  # CVE-2025-4565
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "PyJWT": "2.13",  # CVE-2026-48524
    "starlette": "0.49.1",  # CVE-2025-62727
}


def requirements() -> list[Requirement]:
    """What the package and its extras ask for, without extras that are made of others and what only tests need."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"]]
    for extra in ("grpc", "security"):
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def lower_bound(requirement: Requirement) -> Version:
    (bound,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return Version(bound)


def test_no_lower_bound_allows_a_version_with_a_known_hole():
    bounds = {requirement.name: lower_bound(requirement) for requirement in requirements()}

    assert {name for name, sound in SOUND.items() if bounds[name] < Version(sound)} == set()


def test_what_is_installed_is_not_older_than_the_lower_bounds():
    installed = {each.name: Version(importlib.metadata.version(each.name)) for each in requirements()}

    assert {each.name for each in requirements() if installed[each.name] < lower_bound(each)} == set()


# What is imported under another name than it is installed by.
DISTRIBUTIONS: Final = {
    "argon2": "argon2-cffi",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "jwt": "PyJWT",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
}
# Whoever uses these integrations has them.
HOSTS: Final = {"django", "django_tasks", "pytest"}
OURS: Final = {"penstock", "pyspark_penstock"}


def imported(path: Path) -> set[str]:
    """Packages that a module imports, at its beginning or later."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_what_is_imported_is_declared():
    """What is installed only because something else needs it may be gone tomorrow."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name != "dev"}
    texts = [*project["dependencies"], *(text for texts in extras.values() for text in texts)]
    declared = {Requirement(text).name.lower() for text in texts}
    found = {name for path in (PYPROJECT.parent / "src").rglob("*.py") for name in imported(path)}
    foreign = found - set(sys.stdlib_module_names) - OURS - HOSTS

    assert {name for name in foreign if DISTRIBUTIONS.get(name, name).lower() not in declared} == set()
