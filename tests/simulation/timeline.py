"""The life of one message in one group, as far as a history tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.history import OK, UNKNOWN, Got, History, Place, Row, Settle

POSSIBLE = (OK, UNKNOWN)
# After these deaths a lease that the client was told of may be forgotten: nobody waits for its entry to be durable.
FORGETFUL = ("power", "failure")


@dataclass(slots=True)
class Timeline:
    """Rows about one message in one group, in their order; those with an unknown outcome included."""

    deliveries: list[tuple[Row, Got]] = field(default_factory=list)
    settles: list[tuple[Row, Settle]] = field(default_factory=list)
    letters: list[tuple[Row, dict[str, str]]] = field(default_factory=list)
    moves: list[Row] = field(default_factory=list)  # seeks of the group
    redrives: list[Row] = field(default_factory=list)
    purges: list[Row] = field(default_factory=list)  # of the queue, and cancels of the message
    deaths: list[Row] = field(default_factory=list)
    unseen: list[Row] = field(default_factory=list)  # leases of the group that nobody was told of

    @property
    def acks(self) -> list[Row]:
        """Where the client was told that the message is done."""
        auto = [row for row, _ in self.deliveries if row.args["auto_ack"]]
        return auto + [row for row, settle in self.settles if row.outcome == OK and settle.how == "ack"]

    def pairs(self) -> Iterator[tuple[tuple[Row, Got], tuple[Row, Got]]]:
        """Each delivery and the next."""
        return pairwise(self.deliveries)

    def may_restart(self, first: Row, end: Row) -> bool:
        """Whether a seek or a redrive may have begun the message anew between two rows."""
        return _any(self.moves, first, end) or _any(self.redrives, first, end)

    def may_end(self, got: Got, first: Row, end: Row) -> bool:
        """Whether a delivery may have ended between two rows, other than by running out."""
        settled = [row for row, settle in self.settles if settle.got.nonce == got.nonce]
        return any(_any(rows, first, end) for rows in (settled, self.deaths, self.moves, self.purges))

    def must_have_ended(self, got: Got, first: Row, end: Row) -> bool:
        """Whether a receipt is stale for certain."""
        settled = [row for row, settle in self.settles if settle.got.nonce == got.nonce and row.outcome == OK]
        certain = [row for row in self.moves if row.outcome == OK]
        return end.at >= got.expires_at or any(_any(rows, first, end) for rows in (settled, self.deaths, certain))

    def counted(self, got: Got, first: Row, end: Row) -> bool:
        """Whether the delivery spent an attempt for certain."""
        kind = [row for row, s in self.settles if s.got.nonce == got.nonce and s.how in ("release", "snooze")]
        forgotten = [row for row in self.deaths if row.args["how"] in FORGETFUL]
        return not _any(kind, first, end) and not _any(forgotten, first, end)

    def unseen_between(self, first: Row, end: Row) -> int:
        return sum(first.number < row.number < end.number for row in self.unseen)


def _any(rows: list[Row], first: Row, end: Row) -> bool:
    return any(first.number < row.number < end.number for row in rows)


def timelines(history: History) -> dict[tuple[str, Place], Timeline]:
    """All of them, by group and place. The history is complete."""
    if history.lines is None:
        history.lines = _timelines(history)
    lines: dict[tuple[str, Place], Timeline] = history.lines
    return lines


def _timelines(history: History) -> dict[tuple[str, Place], Timeline]:
    lines: dict[tuple[str, Place], Timeline] = {}
    for row, group, got in history.deliveries():
        lines.setdefault((group, got.place), Timeline()).deliveries.append((row, got))
    for row, settle in history.settles(*POSSIBLE):
        lines.setdefault((settle.group, settle.got.place), Timeline()).settles.append((row, settle))
    for row in history.of("letters"):
        for _, origin, group, _, headers in row.result:
            lines.setdefault((group, origin), Timeline()).letters.append((row, headers))
    for (group, place), line in lines.items():
        _add_operators(history, group, place, line)
    return lines


def _add_operators(history: History, group: str, place: Place, line: Timeline) -> None:
    line.deaths = history.deaths()
    for row in history.of("seek", "redrive", "purge", "cancel", "lease", outcomes=POSSIBLE):
        same = row.args.get("queue") == place.queue
        if row.op == "seek" and same and row.args["group"] == group:
            line.moves.append(row)
        elif row.op == "redrive" and same and row.args["group"] == group:
            line.redrives.append(row)
        elif (row.op == "purge" and same) or (row.op == "cancel" and row.args["place"] == place):
            line.purges.append(row)
        elif row.op == "lease" and row.outcome == UNKNOWN and same and row.args["group"] == group:
            line.unseen.append(row)
