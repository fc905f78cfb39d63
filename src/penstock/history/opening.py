"""A url becomes a history: a directory on this machine, or the files of a broker."""

from __future__ import annotations

from pathlib import Path

from penstock.clock import Clock
from penstock.history.files import Files, LocalFiles
from penstock.history.history import History


def open_history(url: str | Path, *, local: bool = True, clock: Clock | None = None) -> History:
    """`url` is a data directory or `penstock://host:port`.

    The files of a broker are read directly when its directory is on this machine, unless `local` is False.
    """
    return History(_files(str(url), local), clock)


def _files(url: str, local: bool) -> Files:
    if "://" not in url:
        return LocalFiles(url)
    if url.startswith("file://"):
        return LocalFiles(url.removeprefix("file://"))
    from penstock.history.broker_files import BrokerFiles

    return BrokerFiles(url, local=local)
