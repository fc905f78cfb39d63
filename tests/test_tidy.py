"""The style as a test: layers, purity, sizes, and what must not be left lying about.

Everything is read with `ast`; nothing is imported. A rule that fails names each offending place as file:line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Node = TypeVar("Node", bound=ast.AST)
ASKED_FOR = (
    ast.AsyncFunctionDef, ast.Attribute, ast.Call, ast.Compare, ast.FunctionDef, ast.If, ast.Import, ast.ImportFrom,
    ast.Name,
)  # fmt: skip

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "penstock"

FILE_LINES_MAX = 600
TEST_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

# Who may import whom, from the bottom up. A name covers what is inside it; the most specific name that fits a module
# decides for it. Within one layer everything may import everything.
BASE = {
    "errors",
    "refusals",
    "limits",
    "forks",
    "clock",
    "model",
    "model_access",
    "model_audit",
    "model_backlog",
    "model_letters",
    "model_metrics",
    "model_options",
    "model_tasks",
    "cron",
    "version",
    "units",
    "extras",
    "seals",
    "signatures",
    "urls",
}
FORMATS = BASE | {"batch", "envelopes", "validation", "delivery.entries", "delivery.ranges"}
CORE = FORMATS | {"delivery", "storage", "journal", "requests", "replies"}
SHARD = {"shard", "task_index"}
# What crosses the network, and what the two ends of it need beside.
WIRE = BASE | {"batch", "envelopes", "requests", "replies", "validation", "push_items", "operations", "wire"}
# What users hold knows the session, never what is behind it.
FACE = WIRE | {"embedded", "remote"}
SERVER = CORE | SHARD | WIRE | {"access", "embedded", "config", "telemetry", "broker", "dashboard", "postgres"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "limits": set(),
    "version": set(),
    "forks": {"errors"},
    "units": {"errors"},
    "clock": {"errors", "limits"},
    "refusals": {"errors"},
    "model": {"errors", "limits", "refusals"},
    "batch": BASE,
    "model_access": set(),
    "model_audit": {"errors"},
    "model_letters": {"errors", "limits", "model", "signatures"},
    "model_metrics": {"errors"},
    "model_options": set(),
    "model_backlog": {"model", "model_tasks"},
    "signatures": set(),
    "extras": {"errors"},
    "urls": set(),
    "seals": {"errors", "extras"},
    "model_tasks": {"errors", "limits", "model", "model_letters"},
    "cron": {"errors", "limits", "model"},
    "envelopes": BASE | {"batch"},
    "requests": BASE | {"batch"},
    "validation": BASE | {"batch", "envelopes", "requests", "replies"},
    "push_items": BASE | {"batch", "replies"},
    "operations": BASE | {"batch", "requests", "replies", "validation"},
    "access": BASE | {"replies", "operations", "requests", "storage.disk"},
    "delivery": BASE | {"batch", "envelopes", "requests"},
    "storage": FORMATS,
    "journal": FORMATS | {"storage"},
    "postgres": CORE,
    "replies": BASE | {"batch"},
    "shard": CORE | SHARD,
    "task_index": CORE | {"shard.shard", "shard.engine"},
    "repair": CORE | SHARD,
    "verify": CORE | SHARD,
    # Counting, which the core does not know of.
    "telemetry.meter": {"limits"},
    "telemetry.groups": {"delivery"},
    "rollups": CORE | SHARD | {"telemetry.meter", "telemetry.groups"},
    "backup": CORE | SHARD | {"postgres"},
    "embedded": CORE
    | SHARD
    | {"operations", "access", "backup", "postgres", "rollups", "telemetry.meter", "telemetry.groups"},
    "wire": WIRE,
    "config": BASE,
    "dashboard": set(),
    "telemetry": CORE | SHARD | {"embedded"},
    "broker": CORE | SHARD | WIRE | {"access", "embedded", "config", "telemetry"},
    "server": SERVER,
    "remote": WIRE | {"access.discovery"},
    "streams": BASE | {"envelopes", "spark.stages"},
    "client": FACE | {"streams"},
    "aio": FACE | {"client"},
    "tasks": FACE | {"client", "aio"},
    "worker": FACE | {"client", "aio", "tasks", "telemetry.logs"},
    "integrations": FACE | {"client", "aio", "tasks", "worker", "telemetry", "__init__"},
    "history": CORE | FACE | {"access.encryption", "postgres"},
    "spark": CORE | FACE | {"streams", "access.encryption", "history", "client", "__init__"},
    "__init__": FACE | {"client", "aio", "tasks", "spark"},
    "cli": SERVER
    | FACE
    | {"server", "repair", "verify", "backup", "client", "aio", "tasks", "worker", "history", "spark", "__init__"},
    "__main__": {"cli"},
}

# Modules that wait, look at the world or touch it.
WORLDLY = {
    "asyncio", "concurrent", "fcntl", "glob", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys",
    "tempfile", "threading", "time", "uuid",
}  # fmt: skip
PURE = {
    "delivery": WORLDLY | {"pyarrow"},
    "batch": WORLDLY - {"io", "threading"},
    "wire": WORLDLY | {"pyarrow"},
}

# The lock beside the door takes flock, and notes the wall time for people to read. Forks put /dev/null in place of
# descriptors.
# Entries for the owner's own programs are in the user's runtime directory, not in the data directory.
DISK_DOOR = ("storage.disk", "storage.access", "forks", "access.discovery")
CLOCKS = ("clock", "storage.access")

CLOCK_READS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
DATETIME_READS = {"now", "utcnow", "today"}
FILE_CALLS = {
    "open", "write", "pwrite", "pwritev", "writev", "read", "pread", "fsync", "fdatasync", "sync", "rename", "replace",
    "remove", "unlink", "mkdir", "makedirs", "rmdir", "truncate", "ftruncate", "posix_fallocate", "statvfs", "scandir",
    "listdir",
}  # fmt: skip

# What is compared with `hmac.compare_digest` only: `==` takes longer the more of a guess is right.
SECRETS = re.compile(r"(digest|hash|proof|secret|token)(\(\)|\.encode\(\))*$")

# Written in two halves, so that this file does not find itself.
REMINDERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
UNFINISHED = {"NotImplementedError"}
SKIPS = {"skip", "skipif", "xfail", "importorskip"}
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root|home|Users|opt|mnt)" r"/[\w.]")


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


SOURCES = python_files("src/penstock")
TESTS = python_files("tests")
ALL = SOURCES + TESTS + python_files("src/pyspark_penstock", "bench", "examples")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All that any rule asks for: to walk the whole tree for each of them would take longer than all else here."""
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ASKED_FOR)]


def nodes(path: Path, kind: type[Node]) -> Iterator[Node]:
    assert issubclass(kind, ASKED_FOR)
    return (node for node in nodes_of(path) if isinstance(node, kind))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from nodes(path, ast.FunctionDef)
    yield from nodes(path, ast.AsyncFunctionDef)


def module_name(path: Path) -> str:
    """`delivery/entries.py` → `delivery.entries`; a package is named by its folder, the top one `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def covers(name: str, module: str) -> bool:
    return module == name or module.startswith(name + ".")


def within(path: Path, *names: str) -> bool:
    return any(covers(name, module_name(path)) for name in names)


def layer_of(module: str) -> str | None:
    fitting = [name for name in LAYERS if covers(name, module)]
    return max(fitting, key=len, default=None)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of everything imported: `from a.b import c` counts as `a.b.c`, since `c` may be a module."""
    for plain in nodes(path, ast.Import):
        yield from ((alias.name, plain.lineno) for alias in plain.names)
    for chosen in nodes(path, ast.ImportFrom):
        yield from ((f"{chosen.module}.{alias.name}", chosen.lineno) for alias in chosen.names)


def type_lines(path: Path) -> set[int]:
    """Lines of statements under `if TYPE_CHECKING:`, which never run."""
    guards = (guard for guard in nodes(path, ast.If) if ast.unparse(guard.test) == "TYPE_CHECKING")
    return {statement.lineno for guard in guards for statement in guard.body}


def inner_imports(path: Path) -> Iterator[tuple[str, int]]:
    """What a module imports from Penstock itself, as module names below the top package."""
    for name, line in imports(path):
        if name == "penstock":
            yield "__init__", line
        elif name.startswith("penstock."):
            inner = name.removeprefix("penstock.")
            first = PACKAGE / inner.split(".")[0]
            yield (inner if first.is_dir() or first.with_suffix(".py").is_file() else "__init__"), line


def attribute_calls(path: Path, owner: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of `owner.something(…)`."""
    for call in nodes(path, ast.Call):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == owner:
            yield call.func.attr, call


def test_every_module_belongs_to_a_layer():
    lost = [place(path) for path in SOURCES if layer_of(module_name(path)) is None]

    assert not lost, f"give these a line in LAYERS: {lost}"


def test_imports_point_downward_only():
    wrong = []
    for path in SOURCES:
        layer = layer_of(module_name(path))
        allowed = LAYERS[layer] | {layer.split(".")[0]} if layer else set()
        wrong += [
            f"{place(path, line)} imports {target}"
            for target, line in inner_imports(path)
            if not any(covers(name, target) for name in allowed)
        ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_nothing_that_waits_or_touches_the_world(package):
    wrong = [
        f"{place(path, line)} imports {name}"
        for path in SOURCES
        if within(path, package)
        for name, line in imports(path)
        if name.split(".")[0] in PURE[package] and line not in type_lines(path)
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_reads_no_clock_and_draws_nothing(package):
    wrong = []
    for path in (path for path in SOURCES if within(path, package)):
        calls = {"time": CLOCK_READS, "datetime": DATETIME_READS, "date": DATETIME_READS}
        for owner, names in calls.items():
            wrong += [place(path, call.lineno) for name, call in attribute_calls(path, owner) if name in names]
        # A generator made here without a seed would draw from the machine.
        wrong += [
            place(path, call.lineno)
            for call in nodes(path, ast.Call)
            if not call.args and ast.unparse(call.func).endswith(("Random", "default_rng"))
        ]

    assert not wrong, "\n".join(wrong)


def test_only_the_clock_reads_the_time():
    wrong = [
        place(path, call.lineno)
        for path in SOURCES
        if not within(path, *CLOCKS, "cli")
        for owner, names in (("time", CLOCK_READS), ("datetime", DATETIME_READS))
        for name, call in attribute_calls(path, owner)
        if name in names
    ]

    assert not wrong, f"take a Clock as an argument: {wrong}"


def test_only_the_disk_door_touches_files():
    wrong = []
    for path in SOURCES:
        if within(path, *DISK_DOOR, "cli", "spark"):
            continue
        wrong += [place(path, call.lineno) for name, call in attribute_calls(path, "os") if name in FILE_CALLS]
        own_names = {name.split(".")[-1] for name, _ in imports(path)} | {function.name for function in functions(path)}
        if "open" not in own_names:
            wrong += [place(path, call.lineno) for call in nodes(path, ast.Call) if ast.unparse(call.func) == "open"]

    assert not wrong, f"go through storage/disk.py: {wrong}"


def compared_secrets(path: Path) -> Iterator[int]:
    """Lines that compare what is named like a secret by `==` or `!=`."""
    for comparison in nodes(path, ast.Compare):
        sides = [comparison.left, *comparison.comparators]
        is_equality = any(isinstance(operator, ast.Eq | ast.NotEq) for operator in comparison.ops)
        if is_equality and any(SECRETS.search(ast.unparse(side)) for side in sides):
            yield comparison.lineno


def test_secrets_are_compared_in_constant_time():
    wrong = [place(path, line) for path in SOURCES if within(path, "access") for line in compared_secrets(path)]

    assert not wrong, f"use hmac.compare_digest: {wrong}"


def test_a_secret_that_is_compared_by_its_name_is_found(tmp_path):
    lines = ["digest == other", "x != self.tab_secret", "a.digest() == b", "key.hash == b", "found is token", "a == b"]
    path = tmp_path / "sample.py"
    path.write_text("\n".join(lines), encoding="utf-8")

    assert list(compared_secrets(path)) == [1, 2, 3, 4]


def loggers(path: Path) -> Iterator[tuple[str, str, int]]:
    """Loggers of a module: the variable and its annotation, the name of the logger, and the line."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "logging.getLogger":
            yield ast.unparse(node).partition(" =")[0], ast.unparse(value.args[0]), node.lineno


def test_loggers_are_named_alike():
    wrong = [
        place(path, line)
        for path in SOURCES
        for variable, name, line in loggers(path)
        if not variable.endswith("logger: Final") or not name.startswith("'penstock.")
    ]

    assert not wrong, f'write logger: Final = logging.getLogger("penstock.<area>"): {wrong}'


def test_no_test_sleeps():
    wrong = []
    for path in TESTS:
        for owner in ("time", "asyncio"):
            for name, call in attribute_calls(path, owner):
                # asyncio.sleep(0) only lets other tasks run.
                yields = owner == "asyncio" and [ast.unparse(arg) for arg in call.args] == ["0"]
                if name == "sleep" and not yields:
                    wrong.append(place(path, call.lineno))
        wrong += [place(path, line) for name, line in imports(path) if name in {"time.sleep", "asyncio.sleep"}]

    assert not wrong, f"move a ManualClock, or wait for an event: {wrong}"


def test_no_test_is_skipped_or_expected_to_fail():
    wrong = [
        place(path, node.lineno)
        for path in TESTS
        for node in nodes(path, ast.Attribute)
        if node.attr in SKIPS and ast.unparse(node.value) in {"pytest", "pytest.mark", "unittest"}
    ]

    assert not wrong, wrong


def test_no_file_is_too_long():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL}
    limits = {path: TEST_LINES_MAX if path in TESTS else FILE_LINES_MAX for path in sizes}
    wrong = [f"{place(path)} has {lines} lines" for path, lines in sizes.items() if lines > limits[path]]

    assert not wrong, "\n".join(wrong)


def test_no_function_is_too_long():
    wrong = []
    for path in ALL:
        for function in functions(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                wrong.append(f"{place(path, function.lineno)} {function.name} has {lines} lines")

    assert not wrong, "\n".join(wrong)


def test_every_module_opens_with_a_docstring():
    missing = [place(path) for path in ALL if not ast.get_docstring(tree_of(path))]

    assert not missing, missing


def test_nothing_is_left_unfinished():
    wrong = []
    for path in ALL:
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        wrong += [place(path, number) for number, line in lines if REMINDERS.search(line)]
        wrong += [place(path, name.lineno) for name in nodes(path, ast.Name) if name.id in UNFINISHED]

    assert not wrong, wrong


def test_no_text_names_a_path_of_somebodys_machine():
    here = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # as it is in a worktree
    texts = [*here, *(ROOT / "docs").rglob("*.md"), ROOT / ".ci" / "run"]
    wrong = [
        place(path, number)
        for path in texts + ALL
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]

    assert not wrong, wrong


def test_every_package_is_in_the_architecture():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    names |= {path.name for path in PACKAGE.glob("*.py")}
    missing = sorted(name for name in names if f"`{name}`" not in text)

    assert not missing, f"docs/architecture.md does not say what these are for: {missing}"
