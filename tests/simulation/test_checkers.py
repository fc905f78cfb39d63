"""Test the tests: every checker finds the lie that it is there to find, and leaves an honest history alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.simulation import checkers
from tests.simulation.history import FAILED, OK, UNKNOWN, Got, History, Place, Row, Sent, Settle

PLACE = Place("plain", "0", 0)
NEXT = Place("plain", "0", 1)


class Story:
    """A history told row by row; a second passes with each."""

    def __init__(self) -> None:
        self.history = History({name: {} for name in ("plain", "ordered", "keyed", "mixed")})
        self.nonce = 0

    def _row(self, op: str, outcome: str = OK, result: object = None, **args: object) -> Row:
        row = self.history.add(len(self.history.rows) * 1_000_000, "someone", op, **args)
        row.outcome, row.result = outcome, result
        return row

    def push(self, place: Place = PLACE, outcome: str = OK, **options) -> Sent:
        sent = Sent(options.pop("payload", b"%d" % place.offset), **options)
        self._row("push", outcome, [[place]], pushes=[(place.queue, [sent])])
        return sent

    def lease(self, *places: Place, attempt: int = 1, group: str = "default", hold: int = 30, **options) -> Got:
        self.nonce += 1
        at = len(self.history.rows) * 1_000_000
        outcome, key, payload = options.get("outcome", OK), options.get("key"), options.get("payload")
        got = [Got(p, attempt, payload or b"%d" % p.offset, self.nonce, at + hold * 1_000_000, key) for p in places]
        queue = places[0].queue if places else options["queue"]
        self._row("lease", outcome, got, queue=queue, group=group, count=5, auto_ack=False)
        return got[0] if got else Got(PLACE, 0, b"", 0, 0)

    def settle(self, got: Got, how: str = "ack", outcome: str = OK, delay_us: int | None = None) -> None:
        self._row("settle", outcome, settles=[Settle(got, "default", how, delay_us)])

    def death(self, how: str = "kill") -> None:
        self._row("death", how=how)

    def letters(self, *places: Place, attempts: int = 5) -> None:
        headers = {"penstock-reason": "dead", "penstock-attempts": str(attempts)}
        found = [(Place("plain.dlq", "0", n), place, "default", b"0", headers) for n, place in enumerate(places)]
        self._row("letters", OK, found, queue="plain")

    def read(self, *rows: tuple[Place, bytes, str | None, int]) -> None:
        self._row("read", OK, list(rows), queue=rows[0][0].queue)

    def stats(self, **numbers: int) -> None:
        words = ("messages", "ready", "leased", "waiting", "acked", "dead", "dropped")
        group = SimpleNamespace(**{word: numbers.get(word, 0) for word in words})
        self._row("stats", OK, SimpleNamespace(groups={"default": group}), queue="plain", drained=False)


@pytest.fixture
def story():
    return Story()


def test_an_honest_history_breaks_no_promise(story):
    story.push()
    got = story.lease(PLACE)
    story.settle(got, "nack", delay_us=1_000_000)
    again = story.lease(PLACE, attempt=2)
    story.settle(again)
    other = story.lease(PLACE, group="other")
    story.history.rows[-1].args["group"] = "other"
    story._row("settle", settles=[Settle(other, "other", "ack")])
    story.read((PLACE, b"0", None, 0))
    story.stats(messages=1, acked=1)

    assert [found for promise in checkers.PROMISES for found in promise(story.history)] == []


def test_a_lost_message_is_found(story):
    story.push()
    story.lease(PLACE)

    assert len(list(checkers.no_loss(story.history))) == 1  # the group `other` never got it


@pytest.mark.parametrize(("kept", "lost"), [(b"first", 0), (b"second", 2)])
def test_a_purge_excuses_the_duplicate_of_an_earlier_push_only_if_that_one_is_there(story, kept, lost):
    story.push(outcome=UNKNOWN, payload=b"first", dedup_key="d")
    story._row("purge", queue="plain")
    story.push(payload=b"second", dedup_key="d")
    story.read((PLACE, kept, "d", 0))

    assert len(list(checkers.no_loss(story.history))) == lost


@pytest.mark.parametrize("outcome", [FAILED, None])
def test_an_invented_message_is_found(story, outcome):
    if outcome is not None:
        story.push(outcome=outcome)
    story.lease(PLACE)

    assert list(checkers.no_invention(story.history))


def test_a_message_of_a_deleted_queue_is_found(story):
    story._row("visit_push", payload=b"v")
    story._row("visit_delete")
    story._row("visit_lease", OK, [b"v"])

    assert list(checkers.no_invention(story.history))


def test_what_was_pushed_with_an_unknown_outcome_may_appear(story):
    story.push(outcome=UNKNOWN)
    story.lease(PLACE)

    assert not list(checkers.no_invention(story.history))


@pytest.mark.parametrize("change", [{"payload": b"1"}, {"key": "other"}])
def test_a_corrupt_message_is_found(story, change):
    story.push(key="k")
    story.lease(PLACE, **({"key": "k"} | change))

    assert list(checkers.no_corruption(story.history))


def test_a_delivery_after_an_ack_is_found(story):
    story.push()
    story.settle(story.lease(PLACE))
    story.death()
    story.lease(PLACE, attempt=2)

    assert list(checkers.no_delivery_after_ack(story.history))


def test_a_seek_excuses_a_delivery_after_an_ack(story):
    story.push()
    story.settle(story.lease(PLACE))
    story._row("seek", queue="plain", group="default", to="earliest")
    story.lease(PLACE)

    assert not list(checkers.no_delivery_after_ack(story.history))


def test_two_leases_at_once_are_found(story):
    story.push()
    story.lease(PLACE)
    story.lease(PLACE, attempt=2)

    assert list(checkers.lease_exclusivity(story.history))


@pytest.mark.parametrize("why", ["expired", "died", "settled"])
def test_an_accepted_stale_receipt_is_found(story, why):
    story.push()
    got = story.lease(PLACE, hold=0 if why == "expired" else 30)
    if why == "died":
        story.death()
    if why == "settled":
        story.settle(got)
    story.settle(got)

    assert list(checkers.lease_exclusivity(story.history))


def test_messages_out_of_order_are_found(story):
    story.push()
    story.push(NEXT)
    story.lease(NEXT)
    story.lease(PLACE)

    assert list(checkers.order(story.history))


def test_two_messages_of_one_key_in_flight_are_found(story):
    first, second = Place("keyed", "0", 0), Place("keyed", "0", 1)
    story.lease(first, key="k")
    story.lease(second, key="k")

    assert list(checkers.order(story.history))


def test_an_offset_that_was_used_twice_is_found(story):
    story.push()
    story.read((PLACE, b"other", None, 0))

    assert list(checkers.offsets_agree(story.history))


@pytest.mark.parametrize("who", ["delivery", "ack", "letter"])
def test_a_message_that_comes_as_another_is_found(story, who):
    story.push()
    story.push(NEXT)
    if who == "delivery":
        story.lease(NEXT, payload=b"0")
    elif who == "ack":
        story.settle(story.lease(NEXT)._replace(payload=b"0"))
    else:
        story.letters(NEXT)

    assert list(checkers.offsets_agree(story.history))


@pytest.mark.parametrize("attempt", [1, 3])
def test_attempts_that_do_not_count_up_are_found(story, attempt):
    story.push()
    story.settle(story.lease(PLACE), "nack")
    story.lease(PLACE, attempt=attempt)

    assert list(checkers.bounded_duplicates(story.history))


def test_a_lease_lost_to_a_power_cut_may_go_uncounted(story):
    story.push()
    story.lease(PLACE)
    story.death("power")
    story.lease(PLACE, attempt=1)

    assert not list(checkers.bounded_duplicates(story.history))


def test_a_death_after_too_few_attempts_is_found(story):
    story.push()
    story.lease(PLACE)
    story.letters(PLACE, attempts=4)

    assert list(checkers.dead_letter_exactly_once(story.history))


def test_two_dead_letters_of_one_death_are_found(story):
    story.push()
    story.lease(PLACE)
    story.letters(PLACE, PLACE)

    assert list(checkers.dead_letter_exactly_once(story.history))


def test_a_delivery_of_a_dead_message_is_found(story):
    story.push()
    story.settle(story.lease(PLACE), "reject")
    story.lease(PLACE)

    assert list(checkers.dead_letter_exactly_once(story.history))


def test_a_message_that_came_early_is_found(story):
    story.push(delay_us=10_000_000)
    story.lease(PLACE)

    assert list(checkers.delay(story.history))


def test_a_retry_that_came_early_is_found(story):
    story.push()
    story.settle(story.lease(PLACE), "nack", delay_us=10_000_000)
    story.lease(PLACE, attempt=2)

    assert list(checkers.delay(story.history))


def test_a_message_that_came_late_is_found(story):
    story.push(delay_us=1_000_000)
    for _ in range(3):
        story.lease(queue="plain")
    story.lease(PLACE)

    assert list(checkers.delay(story.history))


def test_two_messages_of_one_dedup_key_are_found(story):
    story.push(dedup_key="d")
    story.push(NEXT, dedup_key="d")
    story.read((PLACE, b"0", "d", 0), (NEXT, b"1", "d", 1_000_000))

    assert list(checkers.idempotent_push(story.history))


def test_a_duplicate_that_was_answered_with_another_id_is_found(story):
    story.push(dedup_key="d")
    story.push(NEXT, dedup_key="d")
    story.read((PLACE, b"0", "d", 0))

    assert list(checkers.idempotent_push(story.history))


@pytest.mark.parametrize("numbers", [{"messages": 2, "acked": 1}, {"messages": 0, "acked": 1, "ready": -1}])
def test_an_account_that_does_not_add_up_is_found(story, numbers):
    story.stats(**numbers)

    assert list(checkers.conservation(story.history))
