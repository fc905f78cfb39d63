"""`penstock top` and `penstock bench`: rates, frames, keys in a real terminal; and both against a real broker."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from fcntl import ioctl

import pytest
from rich.console import Console

from penstock import units
from penstock.cli import bench, human, top
from penstock.cli.top import Row, Sampler, counted, ordered
from tests.support.broker_process import QUIET, Served

NOW = datetime(2030, 1, 31, 12, 0, 0, tzinfo=UTC)
PATIENCE_SECONDS = 100.0


def row(name: str, **counts) -> Row:
    zeros = {"ready": 0, "leased": 0, "waiting": 0, "dead": 0, "lag": 0, "bytes_stored": 0}
    return Row(
        name=name,
        oldest_unsettled_at=counts.pop("oldest", None),
        paused=counts.pop("paused", False),
        **{**zeros, **counts},
    )


ROWS = [
    row("mail", ready=3, lag=3, oldest=NOW - timedelta(seconds=12), pushed_per_second=4.0, history=[0, 1, 2, 4]),
    row("orders", ready=1_234_567, leased=1000, waiting=12, dead=7, lag=1_235_579, oldest=NOW - timedelta(hours=3),
        settled_per_second=23_456.0, history=[9.0] * 200),
    row("a-queue-with-a-name-that-is-much-too-long", paused=True),
]  # fmt: skip


def drawn(width: int, height: int = 20, rows: list[Row] | None = None) -> list[str]:
    console = Console(width=width, highlight=False, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(
            top.frame(ordered(ROWS if rows is None else rows, "name"), "name", NOW, width=width, height=height)
        )
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_frame_fits_eighty_columns():
    assert drawn(80) == [
        "queue             ready leased waiting   dead    lag oldest  in/s out/s pushed",
        "‖ a-queue-with-…      0      0       0      0      0      ·     0     0",
        "mail                  3      0       0      0      3    12s   4.0     0      ▂▄█",
        "orders             1.2M  1,000      12      7   1.2M  3h00m     0   23k ████████",
    ]


def test_a_wide_frame_has_room_to_spare():
    lines = drawn(120)
    assert max(map(len, lines)) <= 120
    assert "a-queue-with-a-name-that-is" in lines[1]
    assert lines[3].endswith("█" * 24)


def test_what_does_not_fit_is_counted():
    rows = [row(f"queue-{number:02}") for number in range(30)]
    lines = drawn(80, 16, rows)
    assert len(lines) == 12
    assert lines[-1] == "… and 20 more"
    assert drawn(80, 16, [])[-1] == "no queues yet"


@pytest.mark.parametrize(
    ("sort", "first"), [("name", "a-queue"), ("ready", "orders"), ("dead", "orders"), ("in", "mail"), ("age", "orders")]
)
def test_rows_are_ordered_by_a_column(sort, first, ps):
    assert ordered(ROWS, sort)[0].name.startswith(first)


def test_rates_are_what_came_and_went_between_two_looks(ps):
    queue = ps.queue("mail")
    queue.push_many([b"x"] * 10)
    sampler = Sampler()
    (first,) = sampler.take(counted(ps), 100.0)
    assert (first.pushed_per_second, first.settled_per_second, first.history) == (0, 0, [])

    queue.push_many([b"x"] * 8)
    queue.lease(6).ack()
    (second,) = sampler.take(counted(ps), 102.0)
    assert (second.pushed_per_second, second.settled_per_second, second.history) == (4.0, 3.0, [4.0])

    ps.delete_queue("mail")
    assert sampler.take(counted(ps), 103.0) == []


def test_one_frame_can_be_printed(ps, run):
    ps.queue("mail").push(b"x")
    lines = run("top", "--once", "--every", "50ms").out.splitlines()
    assert lines[0].startswith("penstock top ")
    assert lines[3].split()[:2] == ["mail", "1"]
    (sample,) = run("top", "--once", "--json", "--every", "50ms").json_lines
    assert sample["queues"][0]["ready"] == 1
    assert run("top", "--every", "1ms").code == 1
    assert run("top", "--sort", "colour").code == 1


def test_measuring_leaves_nothing_behind(run, tmp_path):
    where = str(tmp_path / "data")
    run("queues", "create", "mine", "--url", where)
    found = run("bench", "--seconds", "50ms", "--concurrency", "4", "--batch", "10", "--url", where, "--json").json
    assert [each["name"] for each in found["rows"]] == [
        "push",
        "push",
        "push 10",
        "lease + ack 10",
        "push to delivered",
    ]
    assert all(each["messages"] > 0 and each["p50_ms"] <= each["p99_ms"] <= each["max_ms"] for each in found["rows"])
    table = run("bench", "--seconds", "20ms", "--concurrency", "2", "--batch", "10", "--url", where).out.splitlines()
    assert table[0].split()[:3] == ["what", "in", "flight"]
    assert [each["name"] for each in run("queues", "--url", where, "--json").json] == ["mine"]
    assert run("bench", "--seconds", "0", "--url", where).code == 1


def test_percentiles_are_values_that_were_measured():
    seconds = [number / 1000 for number in range(1, 101)]
    assert [bench.percentile(seconds, percent) for percent in (50, 90, 99, 100)] == pytest.approx([50, 90, 99, 100])
    assert bench.percentile([], 50) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.85, "850ms"), (1.5, "1.5s"), (12, "12s"), (245, "4m05s"), (11_520, "3h12m"), (187_200, "2d04h")],
)
def test_durations_are_short(seconds, text):
    assert human.duration(seconds) == text
    assert units.seconds(text) == seconds


def test_sizes_and_counts_are_short():
    assert [human.size(count) for count in (0, 1023, 1536, 2**30)] == ["0 B", "1023 B", "1.5 KiB", "1.0 GiB"]
    assert [human.compact(count) for count in (0, 999_999, 1_500_000, 2 * 10**9)] == ["0", "999,999", "1.5M", "2.0G"]
    assert [human.rate(each) for each in (0, 0.5, 12, 12_345, 2e6)] == ["0", "0.5", "12", "12k", "2.0M"]
    assert units.size_bytes("1.5GiB") == 3 * 2**29


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, width: int = 80, height: int = 20) -> None:
        self.door, inner = pty.openpty()
        ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        clean = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        environment = {**clean, "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "penstock", *words]
        self.process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
        os.close(inner)
        self.text = ""

    def wait_for(self, pattern: str) -> str:
        """Read until the pattern is on the screen."""
        while not re.search(pattern, self.text):
            assert select.select([self.door], [], [], PATIENCE_SECONDS)[0], f"{pattern} never came: {self.text}"
            self.text += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", os.read(self.door, 65536).decode(errors="replace"))
        return self.text

    def press(self, key: str) -> None:
        self.text = ""
        os.write(self.door, key.encode())

    def close(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        os.close(self.door)
        return code


def test_top_lives_in_a_terminal_and_obeys_keys(tmp_path, run):
    where = str(tmp_path / "data")
    run("push", "small", "x", "--url", where)
    run("push", "large", "--lines", "--url", where, stdin=b"x\n" * 5)
    terminal = Terminal("top", "--url", where, "--every", "10s")

    terminal.wait_for(r"large +5[^\n]*\n[^\n]*small +1")
    terminal.press("a")
    terminal.wait_for(r"small +1[^\n]*\n[^\n]*large +5")
    terminal.press("q")
    assert terminal.close() == 0


def test_commands_speak_to_a_real_broker(tmp_path, run):
    with Served(tmp_path, "--data", "data", *QUIET) as served:
        where = ("--url", served.url("tcp"))
        assert run("push", "mail", "hello", *where).out == "mail/0/0\n"
        assert run("push", "mail", "--lines", *where, stdin=b"a\nb\n").code == 0
        receipt = run("lease", "mail", "--json", *where).json_lines[0]["receipt"]
        assert run("extend", receipt, *where).code == 0
        assert run("ack", receipt, *where).out == "✓ mail/0/0 acked\n"
        assert run("ack", receipt, *where).code == 1
        assert (
            run("tail", "mail", "--from", "earliest", "--limit", "3", "--payload-only", *where).out == "hello\na\nb\n"
        )
        assert run("queues", "--json", *where).json[0]["groups"][0]["acked"] == 1
        assert run("lease", "none", *where).code == 4
        assert run("bench", "--seconds", "100ms", "--json", *where).code == 0
        assert run("top", "--once", "--every", "50ms", *where).out.splitlines()[3].split()[:2] == ["mail", "2"]
        assert "is held by" in run("queues", "--url", str(tmp_path / "data")).err
    assert run("queues", *where).code == 2
