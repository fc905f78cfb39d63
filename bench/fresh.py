"""Runs a function in a fresh interpreter, so that nothing measured before is in its memory or its way.

The function is named `module:function`; its arguments and its answer travel as JSON. It may die by SIGKILL on purpose
after it has answered.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class ChildFailed(Exception):
    """The fresh process ended without an answer."""


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` in a fresh process and wait for its answer."""
    name = f"{function.__module__}:{function.__qualname__}"
    command = [sys.executable, "-m", "bench.fresh", name, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL) or not done.stdout:
        raise ChildFailed(f"{name} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(value: Any) -> None:
    """Give the answer now; what follows may be a sudden death."""
    print(json.dumps(value), flush=True)


def die() -> None:
    """As kill -9 does it: no clean stop, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """The fresh process."""
    module, name = sys.argv[1].split(":")
    answer(getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
