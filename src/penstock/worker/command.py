"""A worker as a process: the app by its import path, signals, restart, and reload for development.

SIGTERM and SIGINT stop it; the second one interrupts what still runs and gives it back; a third leaves at once, and the
broker finds out by the silence. SIGINT is passed on to the processes of tasks, which the terminal does not reach. A
worker that is stuck starts its command again, if it may.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.errors import InvalidField
from penstock.worker.worker import Worker


def load_app(path: str) -> Any:
    """The app at `path`; the directory we are in is looked through first."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or not all(part.isidentifier() for part in module_name.split(".")):
        hint = "write module:name, such as myapp:app for 'app' in myapp.py"
        raise InvalidField(f"app: {path!r} is not the place of an app", hint=hint)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidField(f"app: {module_name} has no {name!r}", hint=_apps_in(found))
        found = getattr(found, part)
    return checked(found, path)


def checked(found: Any, path: str) -> Any:
    """`found` itself when it is an app."""
    from penstock.tasks.app import App

    if not isinstance(found, App):
        raise InvalidField(f"app: {path} is a {type(found).__name__}", hint="name a penstock.App")
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "start it in the directory that holds the module, or install the package"
            raise InvalidField(f"app: there is no module {error.name!r}", hint=hint) from None
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> InvalidField:
    """Whatever the module's own code raised, with the place in it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    place = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno})"
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = "mend the module; the worker imports it as Python would"
    return InvalidField(f"app: {name} cannot be imported: {type(error).__name__}: {what}{place}", hint=hint)


def _apps_in(module: Any) -> str:
    from penstock.tasks.app import App

    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"there is {', '.join(names)}" if names else "make one with app = penstock.App(…)"


log: Any = structlog.stdlib.get_logger("penstock.worker")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LEAVE: Final = 3  # at this one


def run_worker(make: Callable[[], Worker]) -> None:
    """Run a worker on a loop of its own until it is over, and close its app."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_run(make))


async def _run(make: Callable[[], Worker]) -> None:
    worker = make()
    _on_signals(worker)
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again finds nothing
    try:
        await worker.run()
    finally:
        await worker.app.aclose()
    if worker.wants_restart:
        log.warning("started again, since too many runs could not be broken off")
        logging.shutdown()
        sys.stdout.flush()
        # The same command in this process's place: nothing else ends a thread.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    if worker.has_broken_off:
        # Threads that still work are waited for by Python, and nobody wants what they do.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    heard = 0

    def stop(number: int) -> None:
        nonlocal heard
        heard += 1
        if heard >= LEAVE:
            os._exit(128 + number)
        if heard > 1:
            log.warning("a second signal: what runs is given back")
        worker.stop()
        if number == signal.SIGINT:
            worker.interrupt()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)


LOOK_SECONDS: Final = 0.5
STOP_SECONDS: Final = 5.0  # for what runs to come to its end; then it is given back
PR_SET_PDEATHSIG: Final = 1
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen = dict[str, tuple[int, int]]


def run_reloading(words: Sequence[str], root: Path) -> int:
    """Run `words` as a process until we are stopped; the exit code."""
    stop = threading.Event()
    stops = 0

    def on_signal(number: int, _: Any) -> None:
        nonlocal stops
        stops += 1
        stop.set()
        if stops > 1:
            current[0].send_signal(number)

    current: list[subprocess.Popen[bytes]] = [_started(words)]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    seen = look(root)
    while not stop.wait(LOOK_SECONDS):
        now = look(root)
        if now != seen:
            log.info("started again", changed=sorted(changed(seen, now))[:3])
            seen = now
            _ended(current[0], STOP_SECONDS)
            current[0] = _started(words)
    current[0].terminate()
    return current[0].wait()


def look(root: Path) -> Seen:
    """Every Python file under a directory, with its time and size."""
    return dict(_look(str(root)))


def changed(before: Seen, after: Seen) -> set[str]:
    """Files that came, went or are different."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _look(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in SKIPPED:
                    yield from _look(entry.path)
            elif entry.name.endswith(".py"):
                with suppress(OSError):  # gone since
                    stat = entry.stat()
                    yield entry.path, (stat.st_mtime_ns, stat.st_size)


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for us, and we pass it on once.
    return subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, *words],
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads here
    )


def _end_with_parent() -> None:
    """In the new process: be stopped when whoever started it is gone, where the system can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # the second: what runs is given back
            process.wait()
