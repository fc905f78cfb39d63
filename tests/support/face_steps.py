"""Random steps for the faces: mostly sensible ones, so that there is something in the queues, and one odd value in
every few steps. All draws come from one seed, and none depends on what came of the steps before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Batch, Message, MessageId
from penstock.model import ContentType
from tests.support.faces import Step

NAN, INFINITE = float("nan"), float("inf")
HUGE = 2**64
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
LATER = datetime(2030, 1, 1, tzinfo=UTC)
NO_TEXT = "\ud800"

QUEUES = ["mail", "orders", "steps", "rooms"]
GROUPS = ["default", "audit", "billing"]

# Values that are wrong somewhere, or look as if they were.
ODD_NAMES = ["ghost", "", "..", "a/b", "a b", "x" * 129, "mail.dlq", "mail/groups/audit", None, 7, NO_TEXT, b"mail"]
ODD_TEXT = [name for name in ODD_NAMES if isinstance(name, str)]
ODD: dict[str, list[Any]] = {
    "queue": ODD_NAMES,
    "member": ODD_NAMES,
    "group": [*ODD_NAMES, "nobody"],
    "consumer": ["me", "", "a b", 7, NO_TEXT],
    "partition": [0, 1, "0", "1", "north", -1, 99, True, 1.5, "", "a/b", HUGE, [0], NO_TEXT, b"0"],
    "partitions": [[0], ["0", 1], [], ["nowhere"], [99], "0", 0, [True], [None], [NO_TEXT], [HUGE], [-1]],
    "priority": ["normal", "high", 0, 255, 256, -1, 1.5, None, True, "urgent", HUGE, NAN, b"1"],
    "delay": [0.0, 0.5, 30, -1, "soon", NAN, INFINITE, 1e12, None, True, HUGE, timedelta(1)],
    "ttl": [0.5, 60, 0, -1, "long", NAN, INFINITE, True, HUGE, 1e-9],
    "deliver_at": [LATER, "2030-01-01T00:00:00Z", "2030-01-01T00:00:00", NAIVE, "soon", 12345, True,
                   "1960-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", datetime.max.replace(tzinfo=UTC)],
    "key": ["a", "b", "", "ä", "k" * 70_000, 7, b"k", NO_TEXT, "a\0b"],
    "headers": [{"a": "b"}, {}, {"": ""}, {"a": 1}, ["a"], {"a": NO_TEXT}, {"a": "v" * 70_000}, "a", {1: "a"},
                {"a": None}],
    "dedup_key": ["x", "y", "", "k" * 2_000, 7, NO_TEXT],
    "max_attempts": [1, 2, 65_535, 0, -1, 70_000, "many", True, 1.5, HUGE],
    "trace": ["00-1-2-3", "", "t" * 300, 7, NO_TEXT],
    "durability": ["os", "fsync", "never", "", 1],
    "payload": [b"", "text", "", {"a": [1, None]}, [], None, 1.5, 2**63, HUGE, NO_TEXT, {"a": NAN}, {"a": NO_TEXT},
                object(), {1: 2}, {(1, 2): 3}, bytearray(b"x"), memoryview(b"y"), INFINITE, True],
    "max": [2, 7, 100_000, 100_001, 0, -1, "1", 1.0, None, True, HUGE],
    "wait": [-1, "x", NAN, 61, None, INFINITE, True],
    "lease_seconds": [0.5, 10, 0, -1, NAN, INFINITE, "x", 43_201, True, HUGE, 1e-9],
    "auto_ack": [True, False],
    "offset": [0, 1, 5, 10**6, -1, "0", 1.5, True, HUGE, 2**63],
    "timestamp": [LATER, "2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z", NAIVE, "soon", 5, True],
    "limit": [1, 3, 100_000, 100_001, 0, -1, "1", None, True, 1.5, HUGE],
    "start": ["latest", "earliest", 0, 3, LATER, "2030-01-01T00:00:00Z", {"0": 1}, {}, {"9": 1}, {"0": -1}, {0: 1},
              -1, True, None, 1.5, HUGE, "soon", NAIVE, {"0": "1"}, [], NO_TEXT],
    "id": ["mail/0/0", "orders/1/0", "mail/0/99", "ghost/0/0", "mail/nowhere/0", "mail", "", "mail/0/x", "mail/0/-1",
           f"mail/0/{HUGE}", MessageId("mail", "0", 0), MessageId("..", "0", 0), MessageId("mail", "a b", 0),
           MessageId("mail", "0", -1), None, 7, NO_TEXT],
    "seconds": [0, 0.0, 30, -1, NAN, INFINITE, "x", None, True, 43_201, HUGE],
    "error": ["no luck", "", "e" * 5_000, "\ud800 broken", 7, None],
    "reason": ["dead", "rejected", "nothing", "", 7, NO_TEXT],
    "error_contains": ["luck", "", 7, NO_TEXT],
    "since": [LATER, NAIVE, "2000-01-01T00:00:00Z", 5],
    "rate": [1, 0.5, 100.0, 0, -1, NAN, INFINITE, "fast", True, HUGE],
    "letters": [[0], [0, 1, 99], [], [5]],
    "ids": ["mail.dlq/0/0", ["mail.dlq/0/0", "orders.dlq/0/0"], MessageId("mail.dlq", "0", 0), 5, [None], ["x"],
            [NO_TEXT], [MessageId("mail.dlq", "0", -1)], {"mail.dlq/0/0"}],
    "session_seconds": [0, -1, NAN, INFINITE, 1e-9, 43_201, HUGE, 1e12],
    "observes": [True, False, 1, "yes"],
    "exist_ok": [True, False],
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {"max_attempts": 3}, {"lease_seconds": 30.0}, {"lease_seconds": 5}, {"delay_seconds": 1.0}, {"ttl_seconds": 60.0},
    {"dedup_seconds": 60.0}, {"max_length": 30}, {"max_length": None}, {"priority": 3}, {"max_attempts": 0},
    {"max_attempts": "many"}, {"max_attempts": 1.0}, {"ordering": "fifo"}, {"ordering": "none"}, {"partitions": 0},
    {"partitions": 3}, {"partitions": "named"}, {"partitions": "many"}, {"partitions": HUGE}, {"push_burst": 10},
    {"push_per_second": 1000.0}, {"push_per_second": 1000.0, "push_burst": 500}, {"push_burst": None},
    {"push_per_second": None}, {"lease_seconds": NAN}, {"lease_seconds": INFINITE}, {"lease_seconds": 0},
    {"lease_seconds": 1e-9}, {"lease_second": 5}, {"max_in_flight": True}, {"max_in_flight": 50},
    {"dead_letter": "yes"}, {"dead_letter": False}, {"retention_bytes": HUGE}, {"retention_seconds": None},
    {"retention_messages_min": 5},
    {"key_max_in_flight": 2}, {"service": "weighted"}, {"service": NO_TEXT}, {"overflow": "drop_oldest"},
    {"durability": "os"}, {"durability": "never"}, {"backoff_multiplier": 1e300}, {"backoff_base_seconds": 0.25},
    {"max_wait_seconds": 100.0}, {"window_seconds": 0.5}, {"starvation_seconds": 0}, {"group_expiry_seconds": 0.5},
    {"backoff_max_seconds": -1.0}, {"ttl_seconds": True}, {"lease_seconds": "5"}, {"max_length": 2**63}, {},
]  # fmt: skip
MESSAGE = (
    "key",
    "priority",
    "delay",
    "deliver_at",
    "ttl",
    "headers",
    "dedup_key",
    "partition",
    "max_attempts",
    "trace",
)


class Steps:
    """Draws steps."""

    def __init__(self, seed: int, *, odd: float = 0.25) -> None:
        self.rng = random.Random(seed)
        self.odd = odd  # how many steps have an odd value
        self.count = 0

    def first(self) -> Iterator[Step]:
        """Queues of every ordering, so that what follows has something to work on."""
        calm = {"backoff_jitter": 0.0, "backoff_base_seconds": 1.0}
        yield Step("create_queue", {"queue": "mail", **calm})
        yield Step("create_queue", {"queue": "orders", "partitions": 2, "ordering": "key", "max_attempts": 2, **calm})
        yield Step("create_queue", {"queue": "steps", "partitions": 2, "ordering": "partition", **calm})
        yield Step("create_queue", {"queue": "rooms", "partitions": "named", **calm})
        for queue in QUEUES:
            yield Step("create_group", {"queue": queue, "name": "audit"})

    def some(self, count: int) -> Iterator[Step]:
        ops = [getattr(self, name) for name in dir(self) if name.startswith("_op_")]
        weights = [WEIGHTS.get(op.__name__.removeprefix("_op_"), 1) for op in ops]
        for _ in range(count):
            self.count += 1
            yield self.rng.choices(ops, weights)[0]()

    # drawing

    def _spoilt(self, args: dict[str, Any], *names: str) -> dict[str, Any]:
        """Perhaps one argument is odd, or one more is there."""
        if names and self.rng.random() < self.odd:
            name = self.rng.choice(names)
            args[name] = self.rng.choice(ODD[FIELDS.get(name, name)])
        return args

    def _queue(self) -> str:
        return self.rng.choice(QUEUES)

    def _group(self) -> str:
        return self.rng.choice(GROUPS[:2])

    def _payload(self) -> bytes:
        return b"%d" % self.count

    def _place(self, queue: str) -> dict[str, Any]:
        return {"partition": self.rng.choice(["north", "south"])} if queue == "rooms" else {}

    def _options(self, queue: str) -> dict[str, Any]:
        """Options of a message, none most of the time."""
        options = self._place(queue)
        if self.rng.random() < 0.4:
            options |= self.rng.choice(
                [{"key": "a"}, {"key": "b"}, {"headers": {"n": "1"}}, {"delay": 2.0}, {"ttl": 5.0}, {"dedup_key": "x"},
                 {"max_attempts": 1}, {"trace": "00-1"}, {"delay": 0}, {"priority": 128}, {"priority": "normal"}]
            )  # fmt: skip
        if queue in ("mail", "rooms") and self.rng.random() < 0.2:
            options["priority"] = self.rng.choice(["high", 0, 200])
        return options

    # messages

    def _op_push(self) -> Step:
        queue = self._queue()
        args = {"queue": queue, "payload": self._payload(), **self._options(queue)}
        return Step("push", self._spoilt(args, "queue", "payload", "durability", *MESSAGE))

    def _op_push_many(self) -> Step:
        queue = self._queue()
        items: list[Any] = [self._item(queue, n) for n in range(self.rng.choice([0, 1, 2, 3, 8]))]
        if self.rng.random() < 0.3:
            items = [self.rng.choice([self._payload(), {"n": n}, "text"]) for n in range(3)]
        if self.rng.random() < self.odd / 2 and items:
            items[-1] = Message(**self._spoilt({"payload": b"odd"}, *MESSAGE, "payload"))
        what: Any = items
        if self.rng.random() < self.odd / 3:
            what = self.rng.choice([[], b"abc", "abc", {"a": 1}, 5, None, iter([b"a"]), Batch.build([b"in a batch"])])
            what = list(what) if isinstance(what, type(iter([]))) else what
        return Step("push_many", self._spoilt({"queue": queue, "items": what}, "queue", "durability"))

    def _item(self, queue: str, number: int) -> Message:
        kind = self.rng.choice([None, None, None, ContentType.JSON, ContentType.BYTES, ContentType.TEXT])
        return Message(payload=b"%d-%d" % (self.count, number), content_type=kind, **self._options(queue))

    def _op_transaction(self) -> Step:
        parts: list[tuple[str, dict[str, Any]]] = []
        for _ in range(self.rng.choice([0, 1, 2, 3])):
            queue = self._queue()
            if self.rng.random() < 0.5:
                args = {"queue": queue, "payload": self._payload(), **self._options(queue)}
                parts.append(("push", self._spoilt(args, "queue", "payload", *MESSAGE)))
            elif self.rng.random() < 0.3:
                items = [self._item(queue, n) for n in range(self.rng.choice([0, 1, 3]))]
                parts.append(("push_many", {"queue": queue, "items": items}))
            else:
                how = self.rng.choice(["ack", "nack", "reject", "release"])
                parts.append((how, {"lease": self.rng.randrange(50), "row": self.rng.randrange(9)}))
        return Step("transaction", {"parts": parts})

    # leasing

    def _op_lease(self) -> Step:
        args = {"queue": self._queue(), "max": self.rng.choice([1, 2, 3, 10]), "group": self._group()}
        if self.rng.random() < 0.1:
            args |= {"group": self.rng.choice(["audit", "late", "later"]), "start": self.rng.choice(["latest", 1])}
        names = ("queue", "max", "group", "wait", "lease_seconds", "consumer", "partitions", "auto_ack", "start")
        return Step("lease", self._spoilt(args, *names))

    def _op_settle(self) -> Step:
        how = self.rng.choice(["ack", "ack", "nack", "reject", "release", "snooze", "extend"])
        row = self.rng.choice([None, *range(5)])
        if row is None and how == "snooze":
            how = "ack"
        args: dict[str, Any] = {"lease": self.rng.randrange(200), "row": row, "how": how}
        if how == "nack" and self.rng.random() < 0.5:
            args |= self._spoilt({"delay": 0}, "delay", "error")
        elif how == "reject":
            args |= self._spoilt({"reason": "rejected"}, "reason")
            args["reason"] = self.rng.choice(ODD["error"]) if self.rng.random() < self.odd else args["reason"]
        elif how in ("snooze", "extend"):
            args |= self._spoilt({"seconds": 20}, "seconds")
        return Step("settle", args)

    # looking

    def _op_read(self) -> Step:
        queue = self._queue()
        args = {"queue": queue, "partition": "north" if queue == "rooms" else 0, "limit": 20}
        return Step("read", self._spoilt(args, "queue", "partition", "offset", "timestamp", "limit"))

    def _op_peek(self) -> Step:
        return Step("peek", self._spoilt({"queue": self._queue(), "limit": 5}, "queue", "limit"))

    def _op_delayed(self) -> Step:
        return Step("delayed", self._spoilt({"queue": self._queue(), "limit": 5}, "queue", "limit"))

    def _op_why(self) -> Step:
        id = f"{self.rng.choice(QUEUES[:3])}/0/{self.rng.randrange(20)}"
        return Step("why", self._spoilt({"queue": "mail", "id": id}, "id"))

    def _op_cancel(self) -> Step:
        id = f"{self.rng.choice(QUEUES[:3])}/0/{self.rng.randrange(20)}"
        return Step("cancel", self._spoilt({"queue": "mail", "id": id}, "id"))

    def _op_stats(self) -> Step:
        return Step("stats", self._spoilt({"queue": self._queue()}, "queue"))

    def _op_options(self) -> Step:
        return Step("options", self._spoilt({"queue": self._queue()}, "queue"))

    def _op_queues(self) -> Step:
        return Step("queues", {})

    # groups

    def _op_create_group(self) -> Step:
        args = {"queue": self._queue(), "name": self.rng.choice(GROUPS)}
        return Step("create_group", self._spoilt(args, "queue", "name", "start", "observes"))

    def _op_delete_group(self) -> Step:
        return Step("delete_group", self._spoilt({"queue": self._queue(), "name": "billing"}, "queue", "name"))

    def _op_seek(self) -> Step:
        args = {"queue": self._queue(), "group": "audit", "to": self.rng.choice(["earliest", "latest", 2])}
        return Step("seek", self._spoilt(args, "queue", "group", "to", "partition"))

    def _op_groups(self) -> Step:
        return Step("groups", self._spoilt({"queue": self._queue()}, "queue"))

    def _op_members(self) -> Step:
        return Step("members", self._spoilt({"queue": self._queue(), "group": "audit"}, "queue", "group"))

    # membership

    def _op_join(self) -> Step:
        args: dict[str, Any] = {"queue": self._queue(), "group": self.rng.choice(["team", "team", "audit", "ghosts"])}
        args |= {"member": self.rng.choice(["one", "two"]), "session_seconds": self.rng.choice([0.5, 10, 30.0])}
        if args["group"] == "team":
            args["start"] = "earliest"
        args = self._spoilt(args, "session_seconds", "start")
        if self.rng.random() < self.odd:  # sessions are given text: clients see to that
            args[self.rng.choice(["queue", "group", "member"])] = self.rng.choice(ODD_TEXT)
        return Step("join", args)

    def _op_heartbeat(self) -> Step:
        held = self.rng.choice([[], ["0"], ["0", "1"], ["north"], ["nowhere"]])
        return Step("heartbeat", {"of": self.rng.randrange(50), "held": held})

    def _op_leave(self) -> Step:
        return Step("leave", {"of": self.rng.randrange(50)})

    def _op_lease_as_member(self) -> Step:
        return Step("lease_as_member", {"of": self.rng.randrange(50), "max": self.rng.choice([1, 3])})

    # queues

    def _op_create_queue(self) -> Step:
        args = {"queue": self.rng.choice(["mail", "new"]), **self.rng.choice(OPTIONS)}
        return Step("create_queue", self._spoilt(args, "queue", "exist_ok"))

    def _op_update_queue(self) -> Step:
        return Step("update_queue", self._spoilt({"queue": self._queue(), **self.rng.choice(OPTIONS)}, "queue"))

    def _op_delete_queue(self) -> Step:
        return Step("delete_queue", self._spoilt({"queue": "new"}, "queue"))

    def _op_pause(self) -> Step:
        return Step(self.rng.choice(["pause", "resume", "resume"]), self._spoilt({"queue": self._queue()}, "queue"))

    def _op_purge(self) -> Step:
        return Step("purge", self._spoilt({"queue": self.rng.choice(["rooms", "new"])}, "queue"))

    # dead letters

    def _op_letters(self) -> Step:
        names = ("queue", "group", "reason", "error_contains", "key", "since", "limit")
        return Step("letters", self._spoilt({"queue": self._queue()}, *names))

    def _op_redrive(self) -> Step:
        names = ("queue", "group", "reason", "error_contains", "key", "since", "rate", "letters", "ids", "limit")
        return Step("redrive", self._spoilt({"queue": self._queue()}, *names))

    def _op_purge_letters(self) -> Step:
        return Step("purge_letters", self._spoilt({"queue": "steps"}, "queue"))

    # time

    def _op_advance(self) -> Step:
        return Step("advance", {"seconds": self.rng.choice([0.01, 1.0, 3.0, 40.0])})

    def _op_seal(self) -> Step:
        return Step("seal", {})


WEIGHTS = {
    "join": 2,
    "push": 14,
    "push_many": 10,
    "lease": 14,
    "settle": 16,
    "transaction": 6,
    "advance": 4,
    "update_queue": 3,
}
FIELDS = {"name": "group", "to": "start"}
