"""What the driver has planned, found again on the machine where a task runs.

A url means what it means on that machine: a path may be missing there, or be another directory; a broker that is named
by loopback is not there, or is another one. So a task gets the shard's id along with its work, and an error says on
which machine the url did not hold.
"""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.errors import NotADataDirectory, PenstockError, Unavailable
from penstock.history import History, is_directory, open_history
from penstock.history.opening import CONNECT_SECONDS
from penstock.storage.directory import MARKER


def open_planned(url: str, shard: str = "", *, local: bool = True, connect_seconds: float = CONNECT_SECONDS) -> History:
    """The history at a url as a task sees it; it must be that of the shard, when one is named."""
    try:
        history = open_history(url, local=local, connect_seconds=connect_seconds)
    except (NotADataDirectory, Unavailable) as error:
        raise not_here(url, error) from None
    if shard and history.shard_id.hex() != shard:
        history.close()
        raise not_here(url, NotADataDirectory("it is another one, with other data, than the job was planned on"))
    return history


def check_directory(directory: str) -> None:
    """Refuse a directory that is not a data directory on this machine."""
    if not (Path(directory) / MARKER).is_file():
        raise not_here(directory, NotADataDirectory(f"{directory} holds no data of Penstock"))


def not_here(url: str, error: PenstockError) -> PenstockError:
    """The error of a task that cannot use a url, with what to do about it."""
    hint = "give a broker's url that holds on every node of the cluster: penstock://host:port, not localhost"
    if is_directory(url):
        hint = "give the url of a broker, penstock://host:port, or a directory that every node has mounted at that path"
    message = f"url: {url} cannot be used on {socket.gethostname()}, where a task of Spark runs: {error.message}"
    return type(error)(message, hint=hint)
