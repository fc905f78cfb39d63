"""A url becomes a history: a directory on this machine, or the files of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.clock import Clock
from penstock.history.files import Files, LocalFiles
from penstock.history.history import History

CONNECT_SECONDS: Final = 5.0


def open_history(
    url: str | Path, *, local: bool = True, clock: Clock | None = None, connect_seconds: float = CONNECT_SECONDS
) -> History:
    """`url` is a data directory or `penstock://host:port`.

    The files of a broker are read directly when its directory is on this machine, unless `local` is False. A broker
    that does not answer is tried for `connect_seconds`; one that goes away later is waited for longer.
    """
    return History(_files(str(url), local, connect_seconds), clock)


def is_directory(url: str) -> bool:
    """Whether a url names a directory and no broker."""
    return "://" not in url or url.startswith("file:")


def absolute_url(url: str) -> str:
    """The url of a directory as it is understood everywhere on this machine; any other as it is."""
    return url if "://" in url else str(Path(url).expanduser().absolute())


def _files(url: str, local: bool, connect_seconds: float) -> Files:
    if is_directory(url):
        return LocalFiles(url.removeprefix("file://"))
    from penstock.history.broker_files import BrokerFiles

    return BrokerFiles(url, local=local, connect_seconds=connect_seconds)
