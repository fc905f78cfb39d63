"""A worker as a process: the app by its import path, signals, restart, and reload for development.

SIGTERM and SIGINT stop it; the second one interrupts what still runs and gives it back; a third leaves at once, and the
broker finds out by the silence. SIGINT is passed on to the processes of tasks, which the terminal does not reach. A
worker that is stuck starts its command again, if it may.

With `--reload` the worker is a process of its own, started again whenever a Python file has changed. A worker that
died, of a syntax error perhaps, is started again by the next change.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidField
from penstock.refusals import likeness

if TYPE_CHECKING:
    from penstock.worker.worker import Worker

logger: Final = logging.getLogger("penstock.worker")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SIGNALS_MAX: Final = 3  # at this one the process leaves at once
MODULES_COMPARED_MAX: Final = 1000  # in the current directory
RELOAD_STOP_SECONDS: Final = 5.0  # for runs to end before a reload; then they are given back
PR_SET_PDEATHSIG: Final = 1

# the app


def load_app(path: str) -> Any:
    """The app at an import path, `package.module:name`; the current directory is searched first.

    Whatever goes wrong is an `InvalidField` of one line.
    """
    from penstock.tasks.app import App

    module_name, _, name = path.partition(":")
    is_file = module_name.endswith(".py")
    if is_file or not module_name or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidField(f"app: {path!r} is not an import path", hint=_path_hint(path))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    app: Any = _import_module(module_name)
    for part in name.split("."):
        if not hasattr(app, part):
            apps = [name for name, value in vars(app).items() if isinstance(value, App)]
            hint = f"did you mean '{module_name}:{apps[0]}'?" if apps else "create one with app = penstock.App(…)"
            raise InvalidField(f"app: {module_name} has no {name!r}", hint=hint)
        app = getattr(app, part)
    if not isinstance(app, App):
        raise InvalidField(f"app: {path} is a {type(app).__name__}", hint="give the path of a penstock.App")
    return app


def _path_hint(path: str) -> str:
    """What may have been meant: `shop.py:app` and `src/shop.py` are files, `shop.app` has a dot for the colon."""
    file, colon, name = path.partition(":")
    module = file.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    if not colon and not file.endswith(".py") and "." in module:
        module, _, name = module.rpartition(".")
    if all(part.isidentifier() for part in [*module.split("."), name or "app"]):
        return f"did you mean '{module}:{name or 'app'}'?"
    return "write module:name, such as shop:app for 'app' in shop.py"


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidField(f"app: there is no module {error.name!r}", hint=_module_hint(name)) from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _module_hint(name: str) -> str:
    """The module may be misspelt, or be elsewhere."""
    here = [path.stem for path in islice(Path().glob("*.py"), MODULES_COMPARED_MAX)]
    return likeness(name, here) or "run it in the directory that contains the module, or install the package"


def _import_failed(name: str, error: Exception) -> InvalidField:
    """What the module's own code raised, with its line."""
    if isinstance(error, SyntaxError):
        what, place = error.msg, f" ({error.filename}:{error.lineno})"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
        what, place = str(error), f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    hint = "fix the module; the worker imports it like Python does"
    return InvalidField(f"app: {name} cannot be imported: {type(error).__name__}: {what}{place}", hint=hint)


# the process


def run_worker(make: Callable[[], Worker]) -> None:
    """Run a worker on a loop of its own until it has ended, and close its app."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_run(make))


async def _run(make: Callable[[], Worker]) -> None:
    worker = make()
    _handle_signals(worker)
    gc.collect()
    gc.freeze()  # what is there now stays: collections need not look through it
    try:
        await worker.run()
    finally:
        await worker.app.aclose()
    if worker.wants_restart:
        logger.warning("restarted: too many runs could not be interrupted")
        logging.shutdown()
        sys.stdout.flush()
        # The same command in this process's place: nothing else ends a thread.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    if worker.has_interrupted:
        # Python waits for threads that still work, and nobody needs what they do.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _handle_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    count = 0

    def stop(number: int) -> None:
        nonlocal count
        count += 1
        if count >= SIGNALS_MAX:
            os._exit(128 + number)
        if count > 1:
            logger.warning("second signal: running tasks return to their queues")
        worker.stop()
        if number == signal.SIGINT:
            worker.send_sigint()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)


# reload


def run_reloading(arguments: Sequence[str], root: Path) -> int:
    """Run Python with these arguments, again after every change below `root`, until stopped; the exit code."""
    from watchfiles import PythonFilter, watch

    stop = threading.Event()
    process = _start(arguments)

    def on_signal(number: int, _: Any) -> None:
        if stop.is_set():
            process.send_signal(number)
        stop.set()

    for number in SIGNALS:
        signal.signal(number, on_signal)
    for changes in watch(root, watch_filter=PythonFilter(), stop_event=stop, ignore_permission_denied=True):
        logger.info("started again", extra={"changed": sorted(path for _, path in changes)[:3]})
        _stop(process)
        process = _start(arguments)
    process.terminate()
    return process.wait()


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux; resolved here, since a fork must not load anything

    def end_with_parent() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    # A session of its own: Ctrl-C in the terminal is for us, and we pass it on once.
    return subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, *arguments],
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - the only other thread watches files, and holds no lock of Python
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(RELOAD_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # the second: what runs is given back
            process.wait()
