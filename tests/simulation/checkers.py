"""One checker per promise of RELIABILITY.md, over the history of a simulation; each returns the offending rows.

A checker knows nothing of the shard: it looks at what clients asked for and what they were told. Where an outcome is
unknown, both are allowed. A message that a rule took away (time to live, purge, cancel, seek) is excused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.history import OK, UNKNOWN, Got, History, Place, Row, Sent
from tests.simulation.timeline import POSSIBLE, Timeline, timelines

LATE_US = 100_000
TICK_US = 2_048  # the timer wheel rounds up
GROUPS = ("default", "other")
Chain = tuple[str, str, str]  # queue, partition, key


def no_loss(history: History) -> Iterator[str]:
    """1. A push answered ok is delivered at least once, or is dead-lettered, expired or purged by rule."""
    seen = timelines(history)
    for row, place, sent in _originals(history):
        for group in GROUPS:
            line = seen.get((group, place), Timeline())
            if not (line.deliveries or line.letters or _is_excused(history, row, place, sent, group)):
                yield f"{place} was never delivered to {group}: {row}"


def _is_excused(history: History, row: Row, place: Place, sent: Sent, group: str) -> bool:
    if history.queues[place.queue].get("retention_drops_unread"):
        return True
    pushed = [each for each in history.pushed(*POSSIBLE) if each[1] == place.queue]
    twins = [(push, each) for push, _, each in pushed if _same_key(each, sent)]
    if sent.ttl_us or any(each.ttl_us for _, each in twins):
        return True
    # A duplicate of a push whose outcome was unknown: a purge between the two took what both are about.
    found = {payload for read in history.of("read") for at, payload, _, _ in read.result if at == place}
    origin = next((push for push, each in twins if each.payload in found), row)
    for other in history.rows[origin.number :]:
        if other.outcome not in POSSIBLE:
            continue
        same = other.args.get("queue") == place.queue
        if other.op in ("purge", "purge_dlq") and same:
            return True
        if other.op == "cancel" and other.args["place"] == place:
            return True
        if other.op == "seek" and same and other.args["group"] == group:
            return True
        if other.op == "lease" and same and other.outcome == UNKNOWN and other.args["auto_ack"]:
            return True  # whoever acknowledges in advance may lose what the reply was to bring
    return False


def _same_key(one: Sent, other: Sent) -> bool:
    """Whether one may be a duplicate of the other: then the reply may speak of either."""
    return one.dedup_key is not None and one.dedup_key == other.dedup_key


def _originals(history: History) -> Iterator[tuple[Row, Place, Sent]]:
    """Confirmed messages that were not answered as duplicates of another."""
    first: dict[Place, Row] = {}
    for row, place, sent in history.placed():
        if first.setdefault(place, row) is row:
            yield row, place, sent


def no_invention(history: History) -> Iterator[str]:
    """2. What is delivered was pushed (ok or unknown). A push answered failed never appears."""
    pushed = {(queue, sent.payload) for _, queue, sent in history.pushed(*POSSIBLE)}
    for row, group, got in history.deliveries():
        if (got.place.queue, got.payload) not in pushed:
            yield f"{got.place} in {group} was never pushed: {row}"
    yield from _ghosts(history)


def _ghosts(history: History) -> Iterator[str]:
    """What a deleted queue held shows in no later queue of its name."""
    pushed = {row.args["payload"]: row.number for row in history.of("visit_push", outcomes=POSSIBLE)}
    deleted = [row.number for row in history.of("visit_delete")]
    for row in history.of("visit_lease"):
        for payload in row.result:
            if payload not in pushed or any(pushed[payload] < number < row.number for number in deleted):
                yield f"{payload!r} was delivered after its queue was deleted: {row}"


def no_corruption(history: History) -> Iterator[str]:
    """3. Delivered bytes are those that were pushed; dead letters and reads too."""
    sent_by_payload = {sent.payload: sent for _, _, sent in history.pushed(*POSSIBLE)}
    for row, _, got in history.deliveries():
        sent = sent_by_payload.get(got.payload)
        if sent is None or sent.key != got.key:
            yield f"{got.place} came as {got.payload[:40]!r} with key {got.key!r}: {row}"
    for row in history.of("letters"):
        for _, origin, group, payload, _ in row.result:
            if payload not in sent_by_payload:
                yield f"the dead letter of {origin} in {group} has bytes that nobody pushed: {row}"


def no_delivery_after_ack(history: History) -> Iterator[str]:
    """4. What was acknowledged is not delivered again, across restarts too, unless the group seeks."""
    for (group, place), line in timelines(history).items():
        for ack in line.acks:
            for row, _ in line.deliveries:
                if row.number > ack.number and not line.may_restart(ack, row):
                    yield f"{place} in {group} was delivered by {row} after {ack}"


def lease_exclusivity(history: History) -> Iterator[str]:
    """5. Two live leases of one group on one message never overlap; a stale receipt is refused."""
    for (group, place), line in timelines(history).items():
        for (row, got), (later, _) in line.pairs():
            if later.at < got.expires_at and not line.may_end(got, row, later):
                yield f"{place} in {group} was leased by {later} while {row} held it"
        for row, settle in line.settles:
            lease = next(lease for lease, got in line.deliveries if got.nonce == settle.got.nonce)
            if row.outcome == OK and line.must_have_ended(settle.got, lease, row):
                yield f"{place} in {group}: a stale receipt was accepted: {row}"


def order(history: History) -> Iterator[str]:
    """6. First deliveries in offset order, where order is promised; with key order one unsettled message per key."""
    yield from _first_deliveries_in_order(history)
    yield from _one_at_a_time(history)


def _first_deliveries_in_order(history: History) -> Iterator[str]:
    highest: dict[tuple[str, str, str], int] = {}
    seen: set[tuple[str, Place]] = set()
    for row in history.rows:
        if row.op == "seek" and row.outcome in POSSIBLE:
            # From here on deliveries may be first ones or not: this queue tells nothing more about order.
            for partition in {place.partition for _, place in seen} | {"0", "1"}:
                highest[row.args["group"], row.args["queue"], partition] = -1
            seen = {(g, p) for g, p in seen if (g, p.queue) != (row.args["group"], row.args["queue"])}
        if row.op != "lease" or row.outcome != OK or row.args["queue"] not in ("plain", "ordered", "named"):
            continue
        for got in row.result:
            group, place = row.args["group"], got.place
            known = (group, place) in seen or got.attempt > 1 or timelines(history)[group, place].redrives
            seen.add((group, place))
            if known:
                continue
            line = (group, place.queue, place.partition)
            if place.offset < highest.get(line, -1):
                yield f"{place} in {group} came first after {highest[line]}: {row}"
            highest[line] = max(place.offset, highest.get(line, -1))


def _one_at_a_time(history: History) -> Iterator[str]:
    """On ordered queues nothing is leased while another message of its partition or key is in flight."""
    lines = timelines(history)
    held: defaultdict[tuple[str, Chain], list[tuple[Row, Got]]] = defaultdict(list)
    for row, group, got in history.deliveries():
        chain = _chain(got)
        if chain is None:
            continue
        for before, other in held[group, chain]:
            together = before is row and got.place.queue == "ordered"
            line = lines[group, other.place]
            over = row.at >= other.expires_at or line.may_end(other, before, row)
            if not over and not together and other.place != got.place:
                yield f"{other.place} was in flight from {before} when {row} took {got.place}"
        if not row.args["auto_ack"]:
            held[group, chain].append((row, got))


def _chain(got: Got) -> Chain | None:
    if got.place.queue == "ordered":
        return got.place.queue, got.place.partition, ""
    if got.place.queue == "keyed" and got.key is not None:
        return got.place.queue, got.place.partition, got.key
    return None


def offsets_agree(history: History) -> Iterator[str]:
    """7. Pushes, deliveries, settles, dead letters and reads map an offset to one payload; none is reused."""
    known: dict[Place, tuple[bytes, Row]] = {}
    for row, place, payload in _claims(history):
        first = known.setdefault(place, (payload, row))
        if first[0] != payload:
            yield f"{place} is {first[0][:30]!r} in {first[1]} and {payload[:30]!r} in {row}"


def _claims(history: History) -> Iterator[tuple[Row, Place, bytes]]:
    """Everything that somebody was told of the payload at a place."""
    for row, place, sent in _originals(history):
        if sent.dedup_key is None:
            yield row, place, sent.payload
    for row, _, got in history.deliveries():
        yield row, got.place, got.payload
    for row, settle in history.settles():
        yield row, settle.got.place, settle.got.payload
    for row in history.of("letters"):
        for _, origin, _, payload, _ in row.result:
            yield row, origin, payload
    for row in history.of("read"):
        for place, payload, *_ in row.result:
            yield row, place, payload


def bounded_duplicates(history: History) -> Iterator[str]:
    """8. A second attempt only after expiry, nack, release, or a death in between; the numbers count up."""
    for (group, place), line in timelines(history).items():
        for (row, got), (later, again) in line.pairs():
            if line.may_restart(row, later):
                continue
            least = got.attempt + (1 if line.counted(got, row, later) else 0)
            most = got.attempt + 1 + line.unseen_between(row, later)
            if not least <= again.attempt <= most:
                yield f"{place} in {group}: attempt {again.attempt} after {got.attempt}: {row}, then {later}"


def dead_letter_exactly_once(history: History) -> Iterator[str]:
    """9. One dead letter per death, after exactly `max_attempts` deliveries; never ready in both queues."""
    own = {sent.payload: sent.max_attempts for _, _, sent in history.pushed(*POSSIBLE)}
    for (group, place), line in timelines(history).items():
        payload = line.deliveries[0][1].payload if line.deliveries else b""
        limit = own.get(payload) or history.queues[place.queue].get("max_attempts", 5)
        for row, headers in line.letters:
            if headers["penstock-reason"] == "dead" and payload and int(headers["penstock-attempts"]) != limit:
                yield f"{place} in {group} died after {headers['penstock-attempts']} attempts of {limit}: {row}"
        for row, got in line.deliveries:
            if got.attempt > limit:
                yield f"{place} in {group} was tried {got.attempt} times of {limit}: {row}"
        killers = [r for r, s in line.settles if s.how == "reject" or (s.how == "nack" and s.got.attempt >= limit)]
        for killer in killers:
            for row, _ in line.deliveries:
                if killer.outcome == OK and killer.number < row.number and not line.may_restart(killer, row):
                    yield f"{place} in {group} was delivered by {row} after it died by {killer}"
    for row in history.of("letters"):
        yield from _twice_dead(history, row)


def _twice_dead(history: History, row: Row) -> Iterator[str]:
    counts = Counter((group, origin) for _, origin, group, _, _ in row.result)
    for (group, place), count in counts.items():
        line = timelines(history)[group, place]
        if count > 1 + sum(move.number < row.number for move in line.moves):
            yield f"{place} in {group} has {count} dead letters: {row}"


def delay(history: History) -> Iterator[str]:
    """10. Never early; at most 100 ms late when idle."""
    due_of: dict[tuple[Place, bytes], tuple[int, Row]] = {}  # a reply to a duplicate names a place, not its delay
    for row, place, sent in _originals(history):
        if sent.delay_us:
            due_of[place, sent.payload] = (row.at + sent.delay_us, row)
    for (group, place), line in timelines(history).items():
        if line.deliveries and (place, line.deliveries[0][1].payload) in due_of:
            first, got = line.deliveries[0]
            due, row = due_of[place, got.payload]
            if first.at < due:
                yield f"{place} was delivered to {group} {due - first.at} µs early: {first}"
            if not (line.unseen or line.redrives or line.moves):  # it was before the group all the time
                yield from _late(history, place, group, due, row, first)
        for row, settle in line.settles:
            if row.outcome != OK or settle.delay_us is None:
                continue
            after = next((later for later, _ in line.deliveries if later.number > row.number), None)
            if after is not None and after.at < row.at + settle.delay_us and not line.may_restart(row, after):
                yield f"{place} came back to {group} early: {row}, then {after}"


def _late(history: History, place: Place, group: str, due: int, pushed: Row, first: Row) -> Iterator[str]:
    """An empty answer after the due time, before the first delivery, means that somebody idle was kept waiting."""
    for row in history.rows[pushed.number : first.number]:
        asked = row.op == "lease" and row.outcome == OK and row.args["group"] == group
        late = row.at > due + LATE_US + TICK_US
        if asked and late and row.args["queue"] == place.queue and not row.result and not _is_paused(history, row):
            yield f"{place} was due in {group} at {due}, and {row} got nothing; it came with {first}"


def _is_paused(history: History, row: Row) -> bool:
    pauses = [r for r in history.of("pause", outcomes=POSSIBLE) if r.args["queue"] == row.args["queue"]]
    before = [r for r in pauses if r.number < row.number]
    return bool(before) and (before[-1].args["to"] or before[-1].outcome == UNKNOWN)


def idempotent_push(history: History) -> Iterator[str]:
    """11. One message per dedup key in the window, the same id returned, also when the first reply was lost."""
    kept: defaultdict[tuple[str, str], list[tuple[int, Place]]] = defaultdict(list)
    for row in history.of("read"):
        for place, _, dedup_key, pushed_at in row.result:
            if dedup_key is not None:
                kept[place.queue, dedup_key].append((pushed_at, place))
    for (queue, dedup_key), messages in kept.items():
        for (at, place), (later, other) in pairwise(sorted(messages)):
            if later - at < _window(history, queue):
                yield f"{place} and {other} both have dedup key {dedup_key!r} within the window"
    for row, place, sent in history.placed():
        if sent.dedup_key is not None:
            since = row.at - _window(history, place.queue)
            right = {other for at, other in kept[place.queue, sent.dedup_key] if since < at <= row.at}
            if right != {place}:
                yield f"dedup key {sent.dedup_key!r} was answered with {place}, not {right}: {row}"


def _window(history: History, queue: str) -> int:
    seconds: float = history.queues[queue].get("dedup_seconds", 86_400)
    return round(seconds * 1e6)


def conservation(history: History) -> Iterator[str]:
    """12. Per group: end − start = ready + leased + waiting + acked + dead + dropped."""
    for row in history.of("stats"):
        for name, group in row.result.groups.items():
            parts = group.ready + group.leased + group.waiting + group.acked + group.dead + group.dropped
            if group.messages != parts or min(group.ready, group.leased, group.waiting) < 0:
                yield f"group {name} does not add up: {group}"
            if row.args["drained"] and name in GROUPS and (group.ready or group.leased or group.waiting):
                yield f"group {name} is not drained: {group}"


PROMISES = (
    no_loss,
    no_invention,
    no_corruption,
    no_delivery_after_ack,
    lease_exclusivity,
    order,
    offsets_agree,
    bounded_duplicates,
    dead_letter_exactly_once,
    delay,
    idempotent_push,
    conservation,
)
