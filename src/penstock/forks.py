"""What a forked process inherits and must not use: open handles, and descriptors.

A fork has a copy of everything: of the state, of the locks as some thread held them, of connections that its parent
goes on using. So in the child every handle that was open is refused, with an error that says what to do, and its copies
of descriptors are closed. Nothing is unlocked, shut down or sent: the parent goes on undisturbed. All of it happens
once, at the fork; calls are not slower for it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

from penstock.errors import Closed


def refuse_pickling(handle: object) -> NoReturn:
    """Another process needs a handle of its own: what a handle consists of cannot be sent there."""
    raise TypeError(
        f"a {type(handle).__name__} cannot be pickled: pass the URL or the directory to the other process, "
        "and open Penstock there"
    )


class Closeable(Protocol):
    """A socket or a file. `close` closes the descriptor and does nothing else."""

    def close(self) -> object: ...


_held: Final[WeakSet[Closeable]] = WeakSet()
_handles: Final[WeakSet[Any]] = WeakSet()
_kept: Final[list[Any]] = []  # what inherited handles consist of: none of it may be finalized here


def close_in_forks(held: Closeable) -> None:
    """Close it in every fork of this process, for as long as this process has it."""
    _held.add(held)


def refuse_in_forks(handle: object) -> None:
    """Refuse every use of it in forks. If it has `descriptors()`, those are closed there."""
    _handles.add(handle)


def inherited(what: str = "this Penstock") -> Closed:
    """The error that a fork gets."""
    return Closed(f"{what} was opened before this process was forked", hint="open it after the fork, once per process")


class Inherited:
    """What a handle is in a fork. To close it is nothing, so that a `with` block may end."""

    def __getattribute__(self, name: str) -> Any:
        if name == "close":
            return _nothing
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise inherited()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise inherited()


class _Nothing:
    """The answer of a call that does nothing; it may be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def _nothing() -> _Nothing:
    return _Nothing()


def _begin_fork() -> None:
    for held in list(_held):
        with suppress(OSError):
            held.close()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for handle in list(_handles):
        descriptors = getattr(handle, "descriptors", list)
        with suppress(Exception):  # of connections that were being made or lost: the handle is refused all the same
            for descriptor in descriptors():
                # Not closed but put out: whoever has its number may close it later, when it could be another's.
                os.dup2(null, descriptor, inheritable=False)
        _kept.append(dict(vars(handle)))
        vars(handle).clear()
        handle.__class__ = Inherited
    os.close(null)
    _handles.clear()


os.register_at_fork(after_in_child=_begin_fork)
