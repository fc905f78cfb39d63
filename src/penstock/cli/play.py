"""What `penstock demo` shows: everything once, with the code that does it and what came out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.markup import escape

import penstock
from penstock.cli import output, scenes
from penstock.cli.stage import Stage, rate
from penstock.cli.verify import examine, write_verification
from penstock.client.sync import Penstock
from penstock.errors import NotADataDirectory
from penstock.requests import DEAD_ATTEMPTS, DEAD_ERROR

READING = b"2030-01-31T12:00:00Z sensor-0042 temperature=21.5 humidity=40.25 pressure=1013.2 battery=0.87 ok=yes"


def play(directory: Path | None, *, quick: bool) -> None:
    """The whole of it, in an empty directory."""
    where = _empty(directory)
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
    raw = scenes.raw_syncs_per_second(where, seconds / 2)
    stage.scene(
        "A push returns when the disk has it", "One message at a time, each on its own; confirmed after fdatasync."
    )
    count = max(10, int(raw * seconds))
    _, took = stage.run(scenes.push_singly, ps, count)
    stage.tell(
        f"{count:,} messages in {took:.2f} s: [bold]{rate(count, took)}[/]. A bare write + sync manages {raw:,.0f}/s."
    )
    stage.scene("Many threads share one sync", "The same push, now from 64 threads. Whoever waits first syncs for all.")
    many = count * 5
    _, shared = stage.run(scenes.push_from_threads, ps, many)
    stage.tell(
        f"{many:,} messages in {shared:.2f} s: [bold]{rate(many, shared)}[/], each still confirmed after a sync."
    )


def _push_batches(stage: Stage, ps: Penstock, batches: int) -> int:
    stage.scene(
        "A batch is one operation", f"Lists of 1,000 sensor readings of {len(READING)} bytes, a sync for each list."
    )
    _, took = stage.run(scenes.push_batches, ps, batches, [READING] * 1000)
    megabytes = batches * 1000 * len(READING) / 1e6
    stage.tell(
        f"{batches * 1000:,} messages, {megabytes:,.0f} MB, in {took:.2f} s: [bold]{rate(batches * 1000, took)}[/]. "
        f"{ps.queue('readings').stats().ready:,} are ready."
    )
    return batches


def _consume(stage: Stage, ps: Penstock, leases: int) -> None:
    stage.scene("Lease, work, acknowledge", "A lease is a right for some seconds. What is not acknowledged comes back.")
    _, took = stage.run(scenes.lease_and_ack, ps, leases)
    stats = ps.queue("readings").stats()
    stage.tell(
        f"{leases * 1000:,} messages in {took:.2f} s: [bold]{rate(leases * 1000, took)}[/]. "
        f"Now {stats.acked:,} are acked and {stats.ready:,} ready."
    )


def _fail(stage: Stage, ps: Penstock) -> None:
    stage.scene(
        "A consumer that fails", "Three payments, one of them nonsense; three attempts each, with backoff between."
    )
    total, _ = stage.run(scenes.pay, ps, stage.line)
    stage.tell(f"{total} paid. The poison message held up nobody, and was not tried for ever.")
    letters, _ = stage.run(scenes.read_dead_letters, ps)
    for letter in letters:
        headers = letter.headers or {}
        why = f"{letter.payload!r} after {headers[DEAD_ATTEMPTS]} attempts, because: {headers[DEAD_ERROR]}"
        stage.tell(f"a dead letter: {escape(why)}")
    stage.scene("The bug is fixed: redrive", "The message goes back to where it died, with its attempts counted anew.")
    stage.run(scenes.redrive, ps, stage.tell)


def _order(stage: Stage, ps: Penstock) -> None:
    stage.scene("Priority and delay", "Four jobs, pushed in one order and delivered in another. Nobody polls.")
    pushed = time.perf_counter()
    stage.run(scenes.push_out_of_order, ps)
    stage.run(scenes.lease_in_order, ps, lambda payload: stage.tell(f"{time.perf_counter() - pushed:.3f} s: {payload}"))


def _kill(stage: Stage, directory: Path, seconds: float) -> None:
    stage.scene(
        "kill -9", "Another process pushes orders and prints each id that is confirmed. It is killed in the middle."
    )
    stage.show(scenes.VICTIM)
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
        stage.tell(f"[bold]{len(lost)} confirmed messages are lost[/]; {len(kept):,} are there", is_good=not lost)
        again = orders.lease(3, wait=2)
        attempts = ", ".join(f"{delivery.id} (attempt {delivery.attempt})" for delivery in again)
        stage.tell(f"what it was working on comes back: {attempts}")


def _killed_after(directory: Path, seconds: float) -> list[int]:
    """Offsets that the victim saw confirmed before it was killed."""
    command = [sys.executable, "-c", scenes.VICTIM, str(directory)]
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
        "Full journal files become Parquet by themselves; seal() does it now. Any tool that reads Parquet will do.",
    )
    stage.run(scenes.seal, ps)
    messages, took = stage.run(scenes.read_history, directory)
    stage.tell(f"{len(messages):,} messages in {took:.2f} s: [bold]{rate(len(messages), took)}[/]; the first of them:")
    for row in messages.slice(0, 2).to_pylist():
        stage.line(str({**row, "pushed_at": row["pushed_at"].isoformat()}))
    outcomes, _ = stage.run(scenes.count_outcomes, directory)
    rows = sorted(tuple(row.values()) for row in outcomes.to_pylist())
    output.write(output.table(("queue", "group", "outcome", "messages"), rows, text_columns=3))


def _verify(stage: Stage, directory: Path) -> None:
    stage.scene("Does it all add up?", "Every checksum, every message, every group's account; nothing is changed.")
    stage.show(f"penstock verify {directory}", "shell")
    write_verification(examine(directory, is_shown=True))


def _next(where: Path) -> None:
    steps = {
        f"penstock doctor {where / 'shop'}": "is it sound?",
        f"rm -r {where}": "when you have seen enough",
        "README.md": "the same in ten lines of your own code",
        "docs/architecture.md": "how it works, and which test keeps which promise",
    }
    width = max(map(len, steps))
    lines = [f"  {escape(step.ljust(width))}   [dim]{why}[/]" for step, why in steps.items()]
    output.write("\n".join(["", "[bold]What next[/]", *lines]))
