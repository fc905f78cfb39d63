"""Ends the process groups of a worker's children when the worker is gone, however it went.

    python -I -S guardian.py        standard input: `+PID` and `-PID`, a line each

It holds a pipe from the worker. At its end, or when the worker has ended though somebody else holds the pipe, every
group that was added and not removed is killed, and the guardian ends. It imports nothing of Penstock, so that it is
small and starts at once.
"""

import io
import os
import select
import signal
import sys


def main(worker: int) -> None:
    """Until the worker is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    try:
        follow(worker, groups)
    finally:
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:  # all of it has ended
                continue


def follow(worker: int, groups: set[int]) -> None:
    """Keep `groups` up to date until the worker is gone."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        descriptor = os.pidfd_open(worker)
    except (AttributeError, OSError):  # another system, or it is gone already: then so is its end of the pipe
        descriptor = -1
    else:
        poll.register(descriptor, select.POLLIN)
    pipe = io.FileIO(0, closefd=False)
    rest = b""
    while True:
        ready = [number for number, _ in poll.poll()]
        if 0 in ready:
            data = pipe.read(65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                change = groups.add if line[:1] == b"+" else groups.discard
                change(int(line[1:]))
        elif descriptor in ready:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
