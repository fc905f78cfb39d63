"""Tasks that do to their process what real ones do by accident: fork, leave threads and processes behind, die.

Every run writes lines into a file: that it starts (in which order attempts begin is the order of the lines), which
processes it leaves behind, and whether another attempt at the same task was running at that moment.
"""

from __future__ import annotations

APP = r'''
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import penstock

app = penstock.App(queue=os.environ["RUNS_QUEUE"])
app.queue(os.environ["RUNS_QUEUE"], backoff_base_seconds=0.05)
PLACE = Path(os.environ["RUNS_FOLDER"])
BIG = 300_000


def note(*words):
    line = " ".join(map(str, words)).encode() + b"\n"
    file = os.open(PLACE / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def begin(n):
    """A run starts. The lock is its process's own: forks do not have it, and it ends with the process."""
    global held
    note("start", n, penstock.current_task().attempt, os.getpid())
    held = open(PLACE / f"lock-{n}", "a")
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        note("overlap", n, penstock.current_task().attempt)


def end(n):
    held.close()
    return n


def is_first(n):
    with suppress(FileExistsError):
        os.close(os.open(PLACE / f"seen-{n}", os.O_CREAT | os.O_EXCL))
        return True
    return False


def leave_processes():
    """Two that live on: a fork of this process, and a program with whatever descriptors it can inherit."""
    child = os.fork()
    if not child:
        time.sleep(1000)
        os._exit(0)
    program = subprocess.Popen(["sleep", "1000"], close_fds=False)
    note("left", child)
    note("left", program.pid)
    return child, program.pid


def tell(context, n, count):
    for step in range(count):
        context.progress({"task": n, "step": step})


@app.task
def echo(n: int) -> int:
    begin(n)
    return end(n)


@app.task
def fork_and_return(n: int) -> int:
    begin(n)
    child = os.fork()
    if not child:
        penstock.current_task().progress({"task": -n})
        return -n
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return end(n)


@app.task
def fork_and_raise(n: int) -> int:
    begin(n)
    child = os.fork()
    if not child:
        sys.stderr = open(os.devnull, "w")
        raise ValueError(n)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    return end(n)


@app.task
def fork_and_exit(n: int) -> int:
    begin(n)
    child = os.fork()
    if not child:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return end(n)


@app.task
async def fork_on_the_loop(n: int) -> int:
    child = os.fork()
    if not child:
        return -n
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return n


@app.task
def leave_a_thread(n: int) -> int:
    begin(n)
    context = penstock.current_task()
    context.progress({"task": n})
    threading.Thread(target=tell, args=(context, n, 400)).start()
    return end(n)


@app.task
def tell_in_threads(n: int) -> str:
    begin(n)
    context = penstock.current_task()
    threads = [threading.Thread(target=tell, args=(context, n, 100)) for _ in range(3)]
    for thread in threads:
        thread.start()
    threading.Thread(target=tell, args=(context, n, 300)).start()
    for thread in threads:
        thread.join()
    return str(end(n)) * BIG


@app.task
def tell_between_alarms(n: int) -> int:
    """A handler raises in the middle of whatever the main thread does to tell its progress."""
    begin(n)
    armed, steps = False, 0

    def ring(*_):
        nonlocal armed
        if armed:
            armed = False
            raise InterruptedError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while steps < 300:
        with suppress(InterruptedError):
            steps += 1
            armed = True
            penstock.current_task().progress({"task": n, "filler": "x" * 20_000})
            armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    return end(n)


@app.task
def leave_processes_behind(n: int) -> int:
    begin(n)
    leave_processes()
    return end(n)


@app.task
def die_and_leave_processes(n: int) -> int:
    begin(n)
    if is_first(n):
        leave_processes()
        os.kill(os.getpid(), signal.SIGKILL)
    return end(n)


@app.task(timeout=1)
def take_too_long_with_processes(n: int) -> int:
    begin(n)
    if is_first(n):
        child, _ = leave_processes()
        os.waitpid(child, 0)
    return end(n)


@app.task
def close_all_descriptors(n: int) -> int:
    begin(n)
    if is_first(n):
        os.closerange(3, 1000)
        return n
    return end(n)


@app.task
def become_another_program(n: int) -> int:
    begin(n)
    if is_first(n):
        note("left", os.getpid())
        os.execvp("sleep", ["sleep", "1000"])
    return end(n)


@app.task
def take_a_while(n: int) -> int:
    begin(n)
    time.sleep(0.3)
    return end(n)


LISTENS = "import signal; signal.signal(signal.SIGINT, lambda *_: exit(3)); print(flush=True); signal.pause()"


@app.task
def wait_for_a_program(n: int) -> int:
    """One that ends at Ctrl-C."""
    begin(n)
    program = subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, bufsize=0)
    program.stdout.readline()
    note("listens", n)
    assert program.wait() == 3
    return end(n)


@app.task
def hold(n: int) -> int:
    """Until the test says so."""
    begin(n)
    leave_processes()
    note("holds", n)
    while not (PLACE / f"open-{n}").exists():
        time.sleep(0.01)
    return end(n)
'''
