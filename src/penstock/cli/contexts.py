"""`penstock context`: brokers by name.

The file is JSON: `{"current": "local", "contexts": {"local": {"url": "penstock://localhost:7710"}}}`. It lies in the
user's configuration directory, or where PENSTOCK_CONTEXTS says, and only its owner may read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson
from penstock.model import check_name
from penstock.remote import urls

app = typer.Typer(help="Brokers by name: add, use, list, remove.", no_args_is_help=True)

ContextName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the context.")]


class Context(msgspec.Struct, frozen=True):
    """One broker, or a directory."""

    url: str


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
            f"{file()}: {error}", hint="mend the file, or remove it and add your contexts again"
        ) from None


def save(contexts: Contexts) -> None:
    """Write the file in one step, for its owner only."""
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    draft.chmod(0o600)
    draft.replace(path)


def named(name: str | None = None) -> Context | None:
    """The context of this name, which must exist; or the current one, if there is one."""
    known = load()
    chosen = name or known.current
    if chosen is None:
        return None
    if chosen not in known.contexts:
        names = ", ".join(sorted(known.contexts)) or "none"
        raise nothing_there(f"no context {chosen!r}", f"known: {names}; 'penstock context add' makes one")
    return known.contexts[chosen]


@app.command()
def add(
    name: ContextName,
    url: Annotated[str, typer.Argument(metavar="URL", help="penstock://host:port, http://host:port, or a directory.")],
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remember a broker by name; the first one is used at once."""
    known = load()
    check_name(name, "context")
    # A directory must mean the same wherever the next command is run.
    address = urls.spelt_out(url)
    if "://" not in address:
        address = str(Path(address).expanduser().absolute())
    known.contexts[name] = Context(address)
    if use or known.current is None:
        known.current = name
    save(known)
    output.done(f"context {name}: {address}", {"name": name, "url": address}, as_json=as_json)


@app.command()
def use(name: ContextName, as_json: AsJson = False) -> None:
    """Use this context from now on, unless --url or PENSTOCK_URL says otherwise."""
    found = named(name)
    known = load()
    known.current = name
    save(known)
    assert found is not None
    output.done(f"using {name}: {found.url}", {"name": name, "url": found.url}, as_json=as_json)


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """All contexts; the one in use is marked."""
    known = load()
    rows = [(name, context.url, name == known.current) for name, context in sorted(known.contexts.items())]
    if as_json:
        output.write_json([{"name": name, "url": url, "is_current": current} for name, url, current in rows])
    elif rows:
        marked = [("*" if current else "", name, url) for name, url, current in rows]
        output.write(output.table(("", "context", "url"), marked, text_columns=3))
    else:
        output.write("no contexts; 'penstock context add NAME URL' makes one")


@app.command()
def remove(name: ContextName, as_json: AsJson = False) -> None:
    """Forget a context; the broker itself is left alone."""
    named(name)
    known = load()
    del known.contexts[name]
    if known.current == name:
        known.current = None
    save(known)
    output.done(f"forgot {name}", {"name": name}, as_json=as_json)
