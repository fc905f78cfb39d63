"""Which broker a command speaks to, and speaking to it.

`--url`, then PENSTOCK_URL, then `--context` or PENSTOCK_CONTEXT, then the context in use, then a broker on this
machine. What has no scheme is a data directory, opened in this process; `host:port` is short for
`penstock://host:port`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import contexts
from penstock.cli.exits import SERVER_ERROR, CommandError
from penstock.errors import DirectoryInUse
from penstock.remote import urls

if TYPE_CHECKING:
    from penstock import Penstock

URL_DEFAULT: Final = "penstock://localhost:7710"
CLIENT: Final = "penstock-cli"  # what the broker's logs and metrics call us


def address(url: str | None, context: str | None = None) -> str:
    """The url of a broker, or a path."""
    if url:
        return urls.spelt_out(url)
    found = contexts.named(context)
    return URL_DEFAULT if found is None else found.url


def is_directory(where: str) -> bool:
    """Whether an address is a data directory."""
    return "://" not in where


@contextmanager
def opened(url: str | None, context: str | None = None, *, is_made: bool = False) -> Iterator[Penstock]:
    """The system at an address. `is_made`: a directory that is not there is made."""
    import penstock

    where = address(url, context)
    if not is_directory(where):
        with penstock.connect(where, client=CLIENT, token=os.environ.get("PENSTOCK_TOKEN")) as ps:
            yield ps
        return
    require_directory(where, is_made=is_made)
    try:
        ps = penstock.open(Path(where).expanduser())
    except DirectoryInUse as error:
        raise in_use(error) from None
    with ps:
        yield ps


def require_directory(where: str, *, is_made: bool) -> None:
    """Looking at a place must not leave a data directory there."""
    if not is_made and not Path(where).expanduser().is_dir():
        raise FileNotFoundError(f"there is no directory {where}")


def in_use(error: DirectoryInUse) -> CommandError:
    """Another process has the directory: most likely a broker."""
    hint = f"if that is a broker, connect to it instead, such as with --url {URL_DEFAULT}"
    return CommandError(error.message, hint=hint, code=error.code, exit_code=SERVER_ERROR)
