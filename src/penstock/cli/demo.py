"""`penstock demo`: everything once, in a directory of its own, with the code that does it and its result.

The code that is shown is the source of the function that runs, so it cannot drift from it.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer
from rich.markup import escape
from rich.text import Text

import penstock
from penstock.cli import output, shapes
from penstock.cli.storage import verified, write_verification
from penstock.errors import NotADataDirectory

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import Penstock

P = ParamSpec("P")
T = TypeVar("T")

PAUSE_SECONDS = 0.7  # to read what came out before the next scene


class Stage:
    """Prints scenes, and times what they run."""

    def __init__(self, *, is_quick: bool) -> None:
        self._console = output.console()
        self._number = 0
        self._is_apart = False  # an empty line was the last thing printed
        self._pause_seconds = 0.0 if is_quick or not self._console.is_terminal else PAUSE_SECONDS

    def scene(self, title: str, words: str) -> None:
        """Begin a scene."""
        if self._number:
            time.sleep(self._pause_seconds)
        self._number += 1
        self._console.print()
        self._console.rule(f"[bold cyan]{self._number}[/] [bold]{title}[/]", align="left", style="dim")
        self._console.print(words)
        self._is_apart = False

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
        """Show a function's body, run it: its result, and the seconds it took."""
        self.show(source_of(function))
        started = time.perf_counter()
        result = function(*args, **kwargs)
        return result, time.perf_counter() - started

    def show(self, code: str, lexer: str = "python") -> None:
        """Show some code."""
        from rich.syntax import Syntax

        text = Syntax("", lexer, theme="ansi_dark", background_color="default").highlight(code)
        text.rstrip()
        if not self._is_apart:
            self._console.print()
        for line in text.split("\n", allow_blank=True):
            self._console.print(Text("    ") + line, soft_wrap=True)
        self._console.print()
        self._is_apart = True

    def tell(self, text: str, *, is_good: bool = True) -> None:
        """What came out."""
        self._is_apart = False
        self._console.print(f"[{'green' if is_good else 'red'}]→[/] {text}", soft_wrap=True)

    def line(self, text: str) -> None:
        """A detail of it, as it happens."""
        self._is_apart = False
        self._console.print(f"    {escape(text)}", style="dim", soft_wrap=True)


def source_of(function: Callable[..., object]) -> str:
    """The body of a function, without its first line, its docstring and what it returns at the end."""
    lines = inspect.getsource(function).splitlines()
    start = next(index for index, line in enumerate(lines) if line.rstrip().endswith(":")) + 1
    body = textwrap.dedent("\n".join(lines[start:])).strip()
    if body.startswith('"""'):
        body = body.partition('"""')[2].partition('"""')[2].strip()
    *lines, last = body.splitlines()
    last = last.removeprefix("return ")
    return "\n".join(lines if last.isidentifier() else [*lines, last])


def rate(count: float, seconds: float) -> str:
    """A rate per second, for people."""
    return f"{count / max(seconds, 1e-9):,.0f}/s"


Say = Callable[[str], None]

RAW_BYTES = 1_600_000

# Pushes for ever, and prints each id once it is confirmed; three messages are being worked on when it dies.
VICTIM = """\
import sys, penstock

ps = penstock.open(sys.argv[1])
orders = ps.queue("orders")
orders.push_many([b"a", b"b", b"c"])
working_on = orders.lease(3)
while True:
    print(orders.push(b"an order").offset, flush=True)"""


def push_singly(ps: Penstock, count: int) -> None:
    """One after the other."""
    mail = ps.queue("mail")
    for number in range(count):
        mail.push(f"letter {number}")


def push_from_threads(ps: Penstock, count: int) -> None:
    """64 at a time."""
    letters = (f"letter {number}" for number in range(count))
    with ThreadPoolExecutor(64) as threads:
        list(threads.map(ps.queue("mail").push, letters))


def push_batches(ps: Penstock, batches: int, readings: list[bytes]) -> None:
    """A list is one operation."""
    for _ in range(batches):
        ps.queue("readings").push_many(readings)


def lease_and_ack(ps: Penstock, leases: int) -> int:
    """Work through some of them."""
    payload_bytes = 0
    for _ in range(leases):
        leased = ps.queue("readings").lease(max=1000)
        payload_bytes += sum(map(len, leased.payloads()))
        leased.ack()
    return payload_bytes


def pay(ps: Penstock, say: Say) -> int:
    """One of three cannot be added up."""
    payments = ps.create_queue("payments", max_attempts=3, backoff_base_seconds=0.2)
    payments.push_many([{"amount": 12}, {"amount": "twelve"}, {"amount": 30}])
    total = 0
    for delivery in payments.consume(idle_seconds=1):
        try:
            total += delivery.json()["amount"]
            say(f"{delivery.id}, attempt {delivery.attempt}: paid")
        except TypeError as error:
            say(f"{delivery.id}, attempt {delivery.attempt}: {error}")
            delivery.nack(error=str(error))
    return total


def read_dead_letters(ps: Penstock) -> list[penstock.Message]:
    """Why it died."""
    return ps.queue("payments").dlq.list()


def redrive(ps: Penstock, say: Say) -> None:
    """Text is understood now."""
    payments = ps.queue("payments")
    payments.dlq.redrive()
    for delivery in payments.lease(wait=1):
        amount = delivery.json()["amount"]
        say(f"{delivery.id}, attempt {delivery.attempt}: paid {amount}")
        delivery.ack()


def push_out_of_order(ps: Penstock) -> None:
    """Four jobs that will come in another order."""
    jobs = ps.queue("jobs")
    jobs.push("in a second", delay=1)
    jobs.push("when there is time", priority="background")
    jobs.push("like any other")
    jobs.push("at once", priority="critical")


def lease_in_order(ps: Penstock, say: Say) -> None:
    """Each as soon as it may be had."""
    for _ in range(4):
        delivery = ps.queue("jobs").lease(wait=5)[0]
        say(delivery.payload.decode())
        delivery.ack()


def seal(ps: Penstock) -> None:
    """What is still in the journal too."""
    ps.seal()


def read_history(directory: Path) -> pa.Table:
    """Plain pyarrow: no Penstock needed."""
    import pyarrow.dataset as ds

    messages = ds.dataset(directory / "segments" / "messages")
    return messages.to_table(columns=["queue", "offset", "pushed_at", "payload"])


def count_outcomes(directory: Path) -> pa.Table:
    """How they were settled."""
    import pyarrow.dataset as ds

    events = ds.dataset(directory / "segments" / "events").to_table()
    return events.group_by(["queue", "group", "outcome"]).aggregate([("count", "sum")])


def raw_syncs_per_second(directory: Path, seconds: float) -> float:
    """What the disk can do: a small write and a sync, again and again."""
    sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(RAW_BYTES))
        os.fsync(file.fileno())
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), bytes(160), 160 * count % RAW_BYTES)
            sync(file.fileno())
            count += 1
        return count / (time.perf_counter() - started)


READING = b"2030-01-31T12:00:00Z sensor-0042 temperature=21.5 humidity=40.25 pressure=1013.2 battery=0.87 ok=yes"


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A new directory to work in. [default: a temporary one]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer messages and no pauses.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Instead, start a broker with a small example shop and its dashboard.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="With --dashboard: stop after this time. [default: at Ctrl-C]")
    ] = None,
) -> None:
    """Run a 20-second demo: push, lease, retry, delay, kill -9, recover, read the history."""
    where = _empty(directory)
    if dashboard:
        from penstock.cli import demo_shop

        demo_shop.run(where, seconds)
        return
    stage = Stage(is_quick=quick)
    output.write(
        f"[bold]Penstock {penstock.__version__}[/]: a durable queue, here, in this process, and in a directory."
    )
    stage.show(f'import penstock\n\nps = penstock.open("{where}/shop")')
    with penstock.open(where / "shop") as ps:
        _push(stage, ps, where, 0.1 if quick else 1.0)
        batches = _push_batches(stage, ps, 20 if quick else 1000)
        _consume(stage, ps, batches // 4)
        _fail(stage, ps)
        _order(stage, ps)
        _kill(stage, where / "crash", 0.3 if quick else 1.5)
        _read_history(stage, ps, where / "shop")
    _verify(stage, where / "shop")
    _next(where)


def _empty(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise NotADataDirectory(f"{directory} is not empty", hint="name a new directory for the demonstration")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _push(stage: Stage, ps: Penstock, where: Path, seconds: float) -> None:
    raw = raw_syncs_per_second(where, seconds / 2)
    stage.scene(
        "A push returns when the message is on disk", "One message at a time, each confirmed after its own fdatasync."
    )
    count = max(10, int(raw * seconds))
    _, took = stage.run(push_singly, ps, count)
    stage.tell(
        f"{count:,} messages in {took:.2f} s: [bold]{rate(count, took)}[/]. "
        f"The raw disk manages {raw:,.0f} writes with sync per second."
    )
    stage.scene("Many threads share one sync", "The same push from 64 threads. One sync confirms them all.")
    many = count * 5
    _, shared = stage.run(push_from_threads, ps, many)
    stage.tell(
        f"{many:,} messages in {shared:.2f} s: [bold]{rate(many, shared)}[/], each still confirmed after a sync."
    )


def _push_batches(stage: Stage, ps: Penstock, batches: int) -> int:
    stage.scene(
        "A batch is one operation", f"Lists of 1,000 sensor readings of {len(READING)} bytes, with one sync per list."
    )
    _, took = stage.run(push_batches, ps, batches, [READING] * 1000)
    megabytes = batches * 1000 * len(READING) / 1e6
    stage.tell(
        f"{batches * 1000:,} messages, {megabytes:,.0f} MB, in {took:.2f} s: [bold]{rate(batches * 1000, took)}[/]. "
        f"{ps.queue('readings').stats().ready:,} are ready."
    )
    return batches


def _consume(stage: Stage, ps: Penstock, leases: int) -> None:
    stage.scene(
        "Lease, work, acknowledge", "Messages that are not acknowledged before the lease ends are delivered again."
    )
    _, took = stage.run(lease_and_ack, ps, leases)
    stats = ps.queue("readings").stats()
    stage.tell(
        f"{leases * 1000:,} messages in {took:.2f} s: [bold]{rate(leases * 1000, took)}[/]. "
        f"Now {stats.acked:,} are acked and {stats.ready:,} ready."
    )


def _fail(stage: Stage, ps: Penstock) -> None:
    stage.scene(
        "A consumer that fails", "Three payments, one of them invalid. Three attempts each, with backoff in between."
    )
    total, _ = stage.run(pay, ps, stage.line)
    stage.tell(f"{total} paid. The poison message did not block the others, and was not retried forever.")
    letters, _ = stage.run(read_dead_letters, ps)
    for letter in letters:
        facts = shapes.death(letter)
        why = f"{letter.payload!r} after {facts['attempts']} attempts, because: {facts['error']}"
        stage.tell(f"a dead letter: {escape(why)}")
    stage.scene("The bug is fixed: redrive", "The message goes back to its group, with all its attempts.")
    stage.run(redrive, ps, stage.tell)


def _order(stage: Stage, ps: Penstock) -> None:
    stage.scene("Priority and delay", "Four jobs, pushed in one order and delivered in another, without polling.")
    pushed = time.perf_counter()
    stage.run(push_out_of_order, ps)
    stage.run(lease_in_order, ps, lambda payload: stage.tell(f"{time.perf_counter() - pushed:.3f} s: {payload}"))


def _kill(stage: Stage, directory: Path, seconds: float) -> None:
    stage.scene("kill -9", "Another process pushes orders and prints each confirmed id, until it is killed.")
    stage.show(VICTIM)
    confirmed = _killed_after(directory, seconds)
    started = time.perf_counter()
    with penstock.open(directory) as ps:
        opened = time.perf_counter() - started
        orders = ps.queue("orders")
        kept = {message.id.offset for message in orders.read(limit=100_000) if message.id is not None}
        lost = set(confirmed) - kept
        stage.tell(
            f"killed after {len(confirmed):,} confirmed pushes; opened again in {opened * 1000:.0f} ms", is_good=True
        )
        stage.tell(
            f"[bold]{len(lost)} confirmed messages are lost[/]; {len(kept):,} are in the queue", is_good=not lost
        )
        again = orders.lease(3, wait=2)
        attempts = ", ".join(f"{delivery.id} (attempt {delivery.attempt})" for delivery in again)
        stage.tell(f"the messages that it had leased are delivered again: {attempts}")


def _killed_after(directory: Path, seconds: float) -> list[int]:
    """Offsets that the victim saw confirmed before it was killed."""
    command = [sys.executable, "-c", VICTIM, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:  # noqa: S603 - our own words
        assert victim.stdout is not None
        confirmed = [int(victim.stdout.readline())]
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            confirmed.append(int(victim.stdout.readline()))
        victim.kill()
        # What it had printed before it died; the last line may be cut short.
        confirmed += [int(line) for line in victim.stdout.read().split("\n")[:-1]]
    return confirmed


def _read_history(stage: Stage, ps: Penstock, directory: Path) -> None:
    stage.scene(
        "History is a table",
        "Full journal files become Parquet automatically; seal() does it now. Any tool can read them.",
    )
    stage.run(seal, ps)
    messages, took = stage.run(read_history, directory)
    stage.tell(f"{len(messages):,} messages in {took:.2f} s: [bold]{rate(len(messages), took)}[/]; the first two:")
    for row in messages.slice(0, 2).to_pylist():
        stage.line(str({**row, "pushed_at": row["pushed_at"].isoformat()}))
    outcomes, _ = stage.run(count_outcomes, directory)
    rows = sorted(tuple(row.values()) for row in outcomes.to_pylist())
    output.write(output.table(("queue", "group", "outcome", "messages"), rows, text_columns=3))


def _verify(stage: Stage, directory: Path) -> None:
    stage.scene("Verify everything", "Check every checksum, every message and the counters of every group.")
    stage.show(f"penstock verify {directory}", "shell")
    write_verification(verified(directory, is_shown=True))


def _next(where: Path) -> None:
    steps = {
        f"penstock doctor {where / 'shop'}": "check the directory",
        f"rm -r {where}": "remove it",
        "README.md": "the same in a few lines of your own code",
        "docs/architecture.md": "how it works, with the tests of each guarantee",
    }
    width = max(map(len, steps))
    lines = [f"  {escape(step.ljust(width))}   [dim]{why}[/]" for step, why in steps.items()]
    output.write("\n".join(["", "[bold]What next[/]", *lines]))
