"""`penstock segments`: where sealed segments are kept, and moving them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import output
from penstock.cli.options import AsJson, command
from penstock.model import is_store_url
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.storage.segment_files import Book

app = typer.Typer(help="Where sealed segments are kept: status, move, claim.", no_args_is_help=True)

Directory = Annotated[str, typer.Argument(help="The data directory, or the URL of a store in PostgreSQL.")]


@command(app)
def status(directory: Directory, as_json: AsJson = False) -> None:
    """Show where segment files are and where new ones go. The directory may be in use."""
    from contextlib import closing

    from penstock.history import open_history
    from penstock.storage import manifest

    with closing(open_history(checked(directory))) as history:
        book = history.segment_files.book
        found = manifest.read(history.files) or manifest.Manifest()
    leftovers = sum(name not in found.files for name in book.leftovers)
    rows = _rows(book, found)
    if as_json:
        names = ("url", "is_current", "files", "bytes", "messages")
        places = [dict(zip(names, row, strict=True)) for row in rows]
        output.write_json({"locations": places, "leftovers": leftovers})
        return
    shown = [("*" if current else "", url, files, size, messages) for url, current, files, size, messages in rows]
    output.write(output.table(("", "location", "files", "bytes", "messages"), shown, text_columns=2))
    if leftovers:
        output.write(
            f"[yellow]·[/] {plural(leftovers, 'file')} may be left over from an interrupted run and will be removed"
        )


def _rows(book: Book, found: Any) -> list[tuple[str, bool, int, int, int]]:
    from penstock.storage.segment_files import location_number

    urls = {0: "the data directory"} | {entry.number: entry.url for entry in book.locations}
    totals = {number: [0, 0, 0] for number in urls}
    for file in found.files.values():
        total = totals.setdefault(location_number(file.name), [0, 0, 0])
        total[0] += 1
        total[1] += file.bytes
    for extent in found.extents:
        totals.setdefault(location_number(extent.file), [0, 0, 0])[2] += extent.count
    return [
        (urls.get(number, "?"), number == book.current, files, size, messages)
        for number, (files, size, messages) in sorted(totals.items())
    ]


@command(app)
def move(
    directory: Directory,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL|DIR|local", help="The target location. [default: where new segments go]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move all segments to one location, also for new ones. No process may have the directory open.

    Each file is copied, checked and put into the manifest before the old one is removed, so it may be stopped at any
    time, and run again.
    """
    from penstock.embedded.session import Session, segments_at

    session = Session(existing(directory), background=False, segments=segments_at(to))
    try:
        assert session.keeper is not None
        with output.progress("moving", is_shown=not as_json) as on_progress:
            files, size = session.keeper.move_segments(on_progress)
    finally:
        session.close()
    text = f"{plural(files, 'file')} moved, {size:,} bytes"
    output.done(escape(text), {"files_moved": files, "bytes_moved": size}, as_json=as_json)


@command(app)
def claim(directory: Directory, as_json: AsJson = False) -> None:
    """Take the locations over from a directory that is gone, of which this one is a copy. No process may have it open.

    The other one is refused from then on, and removes nothing any more.
    """
    from penstock.embedded.session import Session
    from penstock.storage.segment_files import SegmentOptions, read_book

    session = Session(existing(directory), background=False, segments=SegmentOptions(claims=True))
    try:
        assert session.store is not None
        urls = [entry.url for entry in read_book(session.store.disk).locations]
    finally:
        session.close()
    text = f"owns {', '.join(urls)}" if urls else "has its segments in the data directory: there is nothing to claim"
    output.done(escape(text), {"locations": urls}, as_json=as_json)


def existing(location: str) -> str:
    """`checked`; refused where there is no data directory."""
    location = checked(location)
    if not is_store_url(location):
        from penstock.storage.disk import ReadOnlyDisk
        from penstock.storage.doctor import require_data_directory

        require_data_directory(ReadOnlyDisk(location))
    return location


def checked(location: str) -> str:
    """A URL without a password, or a path."""
    if is_store_url(location):
        from penstock.postgres.outside import checked_target

        checked_target(location)
        return location
    return str(Path(location).expanduser())
