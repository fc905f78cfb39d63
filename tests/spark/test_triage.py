"""`dlq-triage`: signatures, facts, filters, and one run over a directory with three kinds of dead letters."""

from __future__ import annotations

import random
import shlex
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import Message
from penstock import operations as ops
from penstock.cli import main
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import QueueNotFound
from penstock.signatures import signature as of_text
from penstock.spark.pipelines.base import Run, parse_options
from penstock.spark.pipelines.error_signatures import signature
from penstock.spark.pipelines.triage import (
    PIPELINE,
    Filter,
    Taken,
    Triage,
    TriageOptions,
    command,
    open_only,
    steady_text,
)
from penstock.spark.pipelines.triage_facts import ALL, facts_of, in_words, key_prefix, most_telling
from tests.support.operations import run_operation

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/workers/orders.py", line {line}, in handle
    total = price(order)
            ^^^^^^^^^^^^
  File "/srv/app/shop/pricing.py", line 17, in price
    return rates[order["currency"]] * order["amount"]
  File "/srv/app/.venv/lib/python3.11/site-packages/rates/table.py", line 9, in __getitem__
    raise UnknownCurrency(name)
rates.table.UnknownCurrency: no rate for None (order {number}, at 2026-11-16T05:{minute:02}:00Z)
"""
A_TRACEBACK = TRACEBACK.format(line=12, number=7, minute=3)
TIMEOUT = "TimeoutError: no answer from <address> in <n> s"

SIGNATURES = {
    "order 4711 not found": "order <n> not found",
    "user 'ann@example.org' (id=12) is locked": "user <text> (id=<n>) is locked",
    "KeyError: 'currency'": "KeyError: 'currency'",
    "KeyError: 'order-4711'": "KeyError: <text>",
    "HTTP 503 from https://api.example.org/v2/orders/17?x=1": "HTTP 503 from <url>",
    "cannot open /var/spool/app/17.tmp: [Errno 28] No space": "cannot open <path>: [Errno 28] No space",
    "no route to 10.1.2.3:5432 after 30.5s": "no route to <address> after <n>s",
    "job 6f1b2c3d-0000-4000-8000-00000000beef failed at 2026-01-02 03:04:05.678": "job <uuid> failed at <time>",
    "<Order object at 0x7f3a5c> has digest deadbeef01": "<Order object at <hex>> has digest <hex>",
    "rows [1, 2, 3] of utf8 column": "rows [<n>, …] of utf8 column",
    "  spaced\n\tout  ": "spaced out",
    A_TRACEBACK: (
        "rates.table.UnknownCurrency: no rate for None (order <n>, at <time>) at pricing.py:price < orders.py:handle"
    ),
    "": "",
}


def test_errors_with_the_same_cause_have_the_same_signature(spark: Any) -> None:
    errors = spark.createDataFrame(pa.table({"error": list(SIGNATURES)}))

    found = errors.select("error", signature(errors.error)).toArrow()

    assert dict(zip(*found.to_pydict().values(), strict=True)) == SIGNATURES


HEAD = "Traceback (most recent call last):\n"
HOSTILE = [
    HEAD + '  File "a.py", line 1, in f\n' * 500,  # no exception behind them
    HEAD + '  File "a.py", line 1, in f\n' * 500 + "\nValueError: 1",
    HEAD + '  File "a.py", line 1, in f\n' + " \t \n" * 4000,
    HEAD + '  File "a.py", line 1, in f\n' + " " * 15_000,
    HEAD + '  File "a.py", line 1, in f\n' + "  x\n" * 3000 + "ValueError: 7 of 9\nand more",
    HEAD
    + '  File "a.py", line 1, in f\n    x\nFirst: 1\n\n'
    + HEAD
    + '  File "b.py", line 2, in g\n    y\nSecond: 2\n',
    HEAD + '  File "a.py", line 1, in f\n\u00a0ValueError: behind a hard space',
    HEAD + '  File "a.py", line 1, in f\n\rValueError: behind a return',
    HEAD + "no frames at all",
    'Traceback (most recent call last)  File "',
    "/a" * 8000,
    "a@" + "b." * 7000 + "c",
    "1." * 8000,
    "KeyError: '" + "a." * 7000 + "b'",
    "[" + "1, " * 5000 + "2]",
    "'" * 15_000,
    "\x00\x01 7 \u2028 \u0663 «x» ‹5› \U0001f600",
]


def noisy_errors(seed: int, count: int) -> list[str]:
    """Texts of pieces that the rules look for, in any order."""
    pieces = [
        *(
            HEAD,
            '  File "/srv/a/b.py", line 3, in f\n',
            '\tFile "<string>", line 1, in <module>\n',
            "    x = 1\n",
            "\n",
        ),
        *(" ", "ValueError: ", "KeyError: 'a.b'", "'q", '"', "2026-01-02T03:04:05Z", "10.0.0.1:80", "HTTP 503", "/a/b"),
        *("0xdeadbeef", "a@b.c", "http://x/y", "-1,5e3", "é", "\r\n", "<n>, <n>", "C:\\x", "\u00a0", "deadbeef01"),
    ]
    chance = random.Random(seed)
    return ["".join(chance.choices(pieces, k=chance.randint(1, 25))) for _ in range(count)]


def test_spark_and_python_find_the_same_signatures(spark: Any) -> None:
    errors = [*SIGNATURES, *HOSTILE, *noisy_errors(1511, 2000)]
    rows = spark.createDataFrame(list(enumerate(errors)), "number int, error string")
    found = {
        row.number: row.signature for row in rows.select("number", signature(rows.error).alias("signature")).collect()
    }
    differ = [
        (error, found[number], of_text(error)) for number, error in enumerate(errors) if found[number] != of_text(error)
    ]
    assert differ == []


def test_facts_say_what_a_message_has() -> None:
    payload = {"currency": None, "amount": -3, "items": [{"sku": "a"}, {"sku": "a"}], "note": "", "vip": True}
    row = ("0", "eu-17", msgspec.json.encode(payload), {"kind": "x", "penstock-group": "g"}, 128, None, "w1")

    assert {in_words(*fact) for fact in facts_of(*row) if fact[1] != ALL} == {
        "currency is there", "currency = null",
        "amount is there", "amount = -3", "amount is a number", "amount is negative",
        "items is there", "items is a list", "items[] is there", "items[] is an object",
        "items[].sku is there", 'items[].sku = "a"', "items[].sku is text",
        "note is there", 'note = ""', "note is text", "note is empty",
        "vip is there", "vip = true", "vip is a boolean",
        "payload is an object",
        'key starts with "eu-"', "header kind = x", "partition = 0", "priority = 128", "consumer = w1",
    }  # fmt: skip


@pytest.mark.parametrize(("payload", "what"), [(b"\xff\x00", "not JSON"), (b"", "empty"), (None, "empty")])
def test_a_payload_that_is_no_json_is_a_fact(payload: bytes | None, what: str) -> None:
    found = facts_of(None, None, payload, None, None, None, None)

    assert sorted(found) == [("", ALL, ""), ("payload", "is", what)]


def test_a_deep_and_wide_payload_gives_few_facts() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = {"a": deep, "b": list(range(1000))}

    assert len(facts_of(None, None, msgspec.json.encode(deep), None, None, None, None)) <= 310


@pytest.mark.parametrize(("key", "prefix"), [("eu-17", "eu-"), ("user17", "user"), ("17", ""), ("plain", "plain")])
def test_the_prefix_of_a_key(key: str, prefix: str) -> None:
    assert key_prefix(key) == prefix


def fact(
    path: str, kind: str, share: float, healthy: float | None, others: float | None = None, value: str = ""
) -> Any:
    return SimpleNamespace(
        path=path, kind=kind, value=value, share=share, share_healthy=healthy, share_others=others
    )  # fmt: skip


def test_the_most_telling_facts_come_first_and_none_follows_from_another() -> None:
    facts = [
        fact("a", "is", 1.0, 0.3),
        fact("a", "value", 1.0, 0.0),
        fact("customer", "lacks", 0.95, 0.0),
        fact("customer.name", "lacks", 0.95, 0.0),
        fact("b", "value", 0.9, 0.4),
    ]

    assert [(each.path, each.kind) for each in most_telling(facts)] == [
        ("a", "value"), ("customer", "lacks"), ("b", "value"),
    ]  # fmt: skip


def test_with_nothing_to_compare_with_only_values_are_reported() -> None:
    alone = [fact("a", "has", 1.0, None), fact("a", "is", 1.0, None), fact("b", "value", 1.0, None, value="1")]

    assert [each.path for each in most_telling(alone)] == ["b"]


@pytest.mark.parametrize(
    ("text", "steady"),
    [
        ("no answer from <address> within <n> ms", "no answer from"),
        ("<n>: <text>", None),
        ("boom at pricing.py:price < orders.py:handle", "boom"),
        ("(dead, no error given)", None),
    ],
)
def test_the_text_that_a_filter_can_look_for(text: str, steady: str | None) -> None:
    assert steady_text(text) == steady


def test_a_command_is_as_narrow_as_it_must_be() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    one = Filter(who="w", queue="orders", group="g", reason="dead", text="it's", since=at, until=at)
    alone = Taken(own=3, others=0, others_in_time=0)

    assert command(one, alone, (), "./data") == (
        "penstock dlq redrive orders --group g --error 'it'\"'\"'s' --url ./data"
    )
    assert "--since 2026-01-02T03:04:05+00:00" in command(one, Taken(own=3, others=9, others_in_time=0), (), "./data")
    assert command(one, alone, ("orders.dlq/0/1",), "./data") == (
        "penstock dlq redrive orders --id orders.dlq/0/1 --url ./data"
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders without a currency are rejected, those without a customer time out twice, one had a bad day."""
    directory = tmp_path_factory.mktemp("triage") / "data"
    clock, rng = ManualClock(), random.Random(7)
    session = Session(directory, background=False, clock=clock, durability="os")
    with Penstock(BlockingSession(session)) as ps:
        orders = ps.create_queue("orders", max_attempts=2, backoff_base_seconds=0)
        orders.push_many([order(number, rng) for number in range(120)])
        while leased := orders.lease(50, consumer="w1"):
            for delivery in leased:
                settle(delivery, rng)
            clock.advance(0.1)
        run_operation(session, ops.Seal())
        ps.queue("other").push(b"alone")
    return directory


def order(number: int, rng: random.Random) -> Message:
    payload = {"id": number, "currency": rng.choice(["EUR", "USD"]), "customer": {"country": "DE"}, "amount": number}
    if number % 10 == 3:
        payload["currency"] = None
    if number % 12 == 5:
        del payload["customer"]
    return Message(payload=payload, key=f"order-{number}")


def settle(delivery: Any, rng: random.Random) -> None:
    content = delivery.json()
    if content["currency"] is None:
        delivery.reject(TRACEBACK.format(line=rng.randint(1, 99), number=content["id"], minute=rng.randint(0, 59)))
    elif "customer" not in content:
        delivery.nack(error=f"TimeoutError: no answer from 10.0.0.{rng.randint(1, 9)} in {rng.randint(1, 9)} s")
    elif content["id"] == 60:
        delivery.reject("17")
    else:
        delivery.ack()


def test_letters_are_grouped_by_error_with_what_their_payloads_share(
    spark: Any, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(spark, str(data), options=TriageOptions(), out=tmp_path, queues=["orders"])

    report = PIPELINE.run(run)

    triage = msgspec.json.decode((tmp_path / "dlq-triage.json").read_bytes(), type=Triage)
    groups = {group.signature: group for group in triage.groups}
    currency, customer, odd = (groups[text] for text in (SIGNATURES[A_TRACEBACK], TIMEOUT, "<n>"))
    assert [(each.letters, each.attempts_max) for each in (currency, customer, odd)] == [(12, 1), (8, 2), (1, 1)]
    assert [(each.text, each.share, each.share_healthy) for each in currency.shared] == [("currency = null", 1.0, 0.0)]
    assert [each.text for each in customer.shared] == ["customer is missing"]
    assert (odd.sample.origin, odd.sample.error) == ("orders/0/60", "17")
    assert msgspec.json.decode(odd.sample.payload or "")["id"] == 60
    assert report.summary == "21 dead letters in 3 groups"
    for group in triage.groups:
        assert matching(group.redrive, capsys) == group.letters
    again = PIPELINE.run(run)
    assert again.notes[0].startswith("nothing has changed")
    assert again.tables == report.tables


def matching(redrive: str, capsys: pytest.CaptureFixture[str]) -> int:
    """How many letters a suggested command would take."""
    capsys.readouterr()
    assert main([*shlex.split(redrive)[1:], "--dry-run", "--json"]) == 0
    return int(msgspec.json.decode(capsys.readouterr().out)["matched"])


def test_options_are_given_as_text() -> None:
    given: dict[str, Any] = {"all": True, "group": "g", "limit": "3", "share": "0.8", "healthy": "0", "again": True}

    expected = TriageOptions(all=True, group="g", limit=3, share=0.8, healthy=0, again=True)
    assert parse_options(TriageOptions, given) == expected


def test_a_queue_without_dead_letters_and_one_that_is_not_there(spark: Any, data: Path, tmp_path: Path) -> None:
    def run(queue: str) -> Any:
        return PIPELINE.run(Run(spark, str(data), options=TriageOptions(), out=tmp_path, queues=[queue]))

    assert run("other").summary == "no dead letters"
    with pytest.raises(QueueNotFound, match="ordres"):
        run("ordres")


def test_letters_that_were_dealt_with_are_left_out(spark: Any) -> None:
    letters = {"queue": ["a.dlq"] * 4, "partition": ["0"] * 4, "offset": [0, 1, 2, 3]}
    events = {
        "queue": ["a.dlq"] * 3, "partition": ["0"] * 3, "first_offset": [0, 3, 2], "last_offset": [1, 3, 2],
        "outcome": ["redriven", "acked", "retried"],
    }  # fmt: skip

    left = open_only(*(spark.createDataFrame(pa.table(each)) for each in (letters, events)))

    assert [row.offset for row in left.collect()] == [2]
