"""Which broker a command speaks to, and `penstock context`: brokers by name.

`--url`, then PENSTOCK_URL, then `--context` or PENSTOCK_CONTEXT, then the context in use, then a broker on this
machine. What has no scheme is a data directory, opened in this process; `host:port` is short for
`penstock://host:port`.

Contexts are a JSON file: `{"current": "local", "contexts": {"local": {"url": "penstock://localhost:7710"}}}`. It is in
the user's configuration directory, or where PENSTOCK_CONTEXTS says, and only its owner may read it. A context may have
a key, or name the file that has it; PENSTOCK_TOKEN and PENSTOCK_TOKEN_FILE go before both.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
import typer

from penstock.cli import output
from penstock.cli.exits import SERVER_ERROR, CommandError, nothing_there
from penstock.cli.options import AsJson, ContextOption, Flags, Url, command
from penstock.errors import DirectoryInUse, PenstockError, QueueNotFound
from penstock.model import check_name, is_store_url
from penstock.refusals import likeness
from penstock.remote import settings
from penstock.remote.settings import checked_token, has_token_in_environment, token_of_file

if TYPE_CHECKING:
    from penstock import Penstock


app = typer.Typer(help="Brokers by name: add, use, list, remove.", no_args_is_help=True)

ContextName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the context.")]


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broker, or a directory; and the token for it, or the file that has it."""

    url: str
    token: str = ""
    token_file: str = ""

    def __repr__(self) -> str:
        return f"Context({self.url!r})"

    def current_token(self) -> str:
        """The token as it is now: a file may be replaced while a client runs."""
        return checked_token(token_of_file(self.token_file, "token_file") if self.token_file else self.token)


class Contexts(msgspec.Struct):
    """All that the file holds."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def file() -> Path:
    """Where the contexts are kept."""
    chosen = os.environ.get("PENSTOCK_CONTEXTS")
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(chosen) if chosen else Path(base) / "penstock" / "contexts.json"


def load() -> Contexts:
    """The contexts; none if there is no file."""
    try:
        return msgspec.json.decode(file().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except msgspec.MsgspecError as error:
        raise CommandError(
            f"{file()}: {error}", hint="fix the file, or delete it and add your contexts again"
        ) from None


def save(contexts: Contexts) -> None:
    """Write the file in one step. It may hold tokens: nobody else can read it from its first byte on."""
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    draft.replace(path)


def named(name: str | None = None) -> Context | None:
    """The context of this name, which must exist; or the current one, if there is one."""
    known = load()
    chosen = name or known.current
    if chosen is None:
        return None
    if chosen not in known.contexts:
        close = likeness(chosen, list(known.contexts))
        names = f"known: {', '.join(sorted(known.contexts))}; " if known.contexts else ""
        raise nothing_there(f"there is no context {chosen!r}", close or f"{names}'penstock context add' creates one")
    return known.contexts[chosen]


@command(app)
def add(
    name: ContextName,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="penstock://host:port, http://host:port (TLS: penstocks, https), or a directory."
        ),
    ],
    use: Annotated[bool, typer.Option("--use", help="Make it the default.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="A file with an API key, read at each use."),
    ] = None,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read an API key from standard input and store it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Save a broker under a name. The first one becomes the default."""
    known = load()
    check_name(name, "context")
    # A directory must mean the same wherever the next command is run.
    address = settings.spelt_out(url)
    if "://" not in address:
        address = str(Path(address).expanduser().absolute())
    context = Context(address, _token_from_stdin() if token_stdin else "", _absolute(token_file))
    if context.token_file:
        context.current_token()  # refuses now what cannot be used later
    known.contexts[name] = context
    if use or known.current is None:
        known.current = name
    save(known)
    output.done(f"context {name}: {address}", {"name": name, "url": address}, as_json=as_json)


@command(app)
def use(name: ContextName, as_json: AsJson = False) -> None:
    """Make a context the default. --url and PENSTOCK_URL override it."""
    context = named(name)
    known = load()
    known.current = name
    save(known)
    assert context is not None
    output.done(f"using {name}: {context.url}", {"name": name, "url": context.url}, as_json=as_json)


@command(app, "list")
def list_(as_json: AsJson = False) -> None:
    """List contexts; the default is marked."""
    known = load()
    rows = [(name, context.url, name == known.current) for name, context in sorted(known.contexts.items())]
    if as_json:
        output.write_json([{"name": name, "url": url, "is_current": current} for name, url, current in rows])
    elif rows:
        marked = [("*" if current else "", name, url) for name, url, current in rows]
        output.write(output.table(("", "context", "url"), marked, text_columns=3))
    else:
        output.write_nothing("no contexts", "'penstock context add NAME URL' creates one")


@command(app)
def remove(name: ContextName, as_json: AsJson = False) -> None:
    """Remove a context; the broker itself is not touched."""
    named(name)
    known = load()
    del known.contexts[name]
    if known.current == name:
        known.current = None
    save(known)
    output.done(f"forgot {name}", {"name": name}, as_json=as_json)


def _token_from_stdin() -> str:
    token = sys.stdin.readline().strip()
    if not token:
        raise CommandError("standard input has no key", hint="such as: --token-stdin < file")
    return checked_token(token)


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.expanduser().absolute())


URL_DEFAULT: Final = "penstock://localhost:7710"
CLIENT: Final = "penstock-cli"  # what the broker's logs and metrics call us


@dataclass(frozen=True)
class Broker(Flags):
    """The broker, or data directory, that a command speaks to."""

    are_last: ClassVar[bool] = True
    url: Url = None
    context: ContextOption = None

    @property
    def is_named(self) -> bool:
        """Whether the command line or the environment names it."""
        return bool(self.url or self.context)

    @property
    def address(self) -> str:
        """The URL of a broker, or the path of a data directory."""
        if self.url:
            return settings.spelt_out(self.url)
        context = named(self.context)
        return URL_DEFAULT if context is None else context.url

    def token(self) -> Callable[[], str] | None:
        """What the context has for the broker; the environment goes before it, and so does `--url`."""
        context = None if self.url or has_token_in_environment() else named(self.context)
        return context.current_token if context is not None and (context.token or context.token_file) else None

    @property
    def is_directory(self) -> bool:
        """Whether it is a data directory."""
        return "://" not in self.address

    def readable_address(self) -> str:
        """The address; a directory must exist, since reading must not leave a new one there."""
        if is_store_url(self.address):
            from penstock.postgres.outside import checked_target

            checked_target(self.address)
        self._check_scheme()
        if self.is_directory and not Path(self.address).expanduser().is_dir():
            raise FileNotFoundError(f"there is no directory {self.address}")
        return self.address

    def _check_scheme(self) -> None:
        """A URL with a slash missing is not meant as a directory."""
        scheme, colon, rest = self.address.partition(":")
        if colon and self.is_directory and scheme in (*settings.PORTS, "postgresql", "postgres"):
            hint = f"did you mean '{scheme}://{rest.lstrip('/')}'?"
            raise CommandError(f"url: {self.address!r} is not a URL", hint=hint)

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[Penstock]:
        """A connection to it. With `create`, a directory that does not exist is created."""
        import penstock

        if not self.is_directory:
            with penstock.connect(self.address, client=CLIENT, token=self.token()) as ps, suggesting_queues(ps):
                yield ps
            return
        self._check_scheme()
        path = self.address if create else self.readable_address()
        try:
            ps = penstock.open(Path(path).expanduser())
        except DirectoryInUse as error:
            hint = f"if that is a broker, connect to it instead, such as with --url {URL_DEFAULT}"
            raise CommandError(error.message, hint=hint, code=error.code, exit_code=SERVER_ERROR) from None
        with ps, suggesting_queues(ps):
            yield ps


@contextmanager
def suggesting_queues(ps: Penstock) -> Iterator[None]:
    """A queue that does not exist may be one that does, misspelt: of those that the caller may see."""
    try:
        yield
    except QueueNotFound as error:
        name = re.search(r"'([^']+)'", error.message)
        close = ""
        with suppress(PenstockError):
            close = likeness(name[1], list(ps.queues())) if name else ""
        if close:
            error.hint = f"{close} {error.hint}"
        raise
