"""Runs faults: `python -m tests.mutants.run [NAME …]`, all of them without a name. Exits with 1 when one survives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.fault import Fault
from tests.mutants.faults import FAULTS

ROOT: Final = Path(__file__).parent.parent.parent
PACKAGE: Final = ROOT / "src" / "penstock"
TEST_SECONDS: Final = 60  # a fault may hang what it does not fail
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a fault; `caught_by` is empty for one that survived."""

    fault: Fault
    caught_by: str
    seconds: float
    output: str


def planted(fault: Fault, directory: Path) -> Path:
    """A copy of the package with the fault, and the directory to import it from."""
    source = directory / "src"
    shutil.copytree(PACKAGE, source / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "penstock" / fault.path
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.name}: {fault.path} has the line {text.count(fault.old)} times"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return source


def run(fault: Fault) -> Outcome:
    """Plant a fault and run its tests until one fails."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-mutant-") as directory:
        source = planted(fault, Path(directory))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "--tb=short", *fault.tests]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(TEST_SECONDS)]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        found = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    output = found.stdout + found.stderr
    return Outcome(fault, caught_by(fault, found.returncode, output), time.monotonic() - begun, output)


def caught_by(fault: Fault, code: int, output: str) -> str:
    """The test that failed, or how the tests ended; empty when they passed."""
    names: list[str] = FAILED.findall(output)
    if code == 0:
        return ""
    if code == 1 and names:
        return names[0]
    # Ended by its time limit or by a fault of the interpreter, pytest does not say which test it was.
    if "+ Timeout +" in output:
        return f"{fault.tests[0]} (hangs)"
    assert code < 0, f"{fault.name}: the tests did not run: {output[-2000:]}"
    return f"{fault.tests[0]} (crashes)"


def main(names: list[str]) -> int:
    """Run faults and print a table."""
    known = {fault.name: fault for fault in FAULTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.stderr.write(f"no such fault: {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 2
    chosen = [known[name] for name in names] or list(FAULTS)
    survived = 0
    for fault in chosen:
        outcome = run(fault)
        survived += not outcome.caught_by
        result = outcome.caught_by or "SURVIVED"
        sys.stdout.write(f"{fault.name:32} {outcome.seconds:6.1f} s  {fault.what}\n{'':42}→ {result}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survived} caught, {survived} survived\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
