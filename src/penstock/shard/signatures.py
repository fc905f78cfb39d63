"""Dead letters by the signature of their errors, and what those of one signature share that healthy messages do not.

The work is bounded: of each queue the newest letters are looked at, and the newest messages that were acknowledged. The
report says how many there are beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.delivery import admin
from penstock.delivery.log import Queue
from penstock.delivery.phases import SETTLED
from penstock.model import DLQ_SUFFIX, Message, to_datetime, to_micros
from penstock.model_letters import (
    DEAD_HEADERS,
    DEAD_REASON,
    SampledQueue,
    Share,
    SignatureReport,
    SignatureView,
    letter_signature,
    payload_bytes,
)
from penstock.replies import Piece
from penstock.shard import browse
from penstock.shard.dead_letters import some_letters
from penstock.shard.payload_rows import pieces_of

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

LETTERS_MAX: Final = 10_000  # that are looked at in one queue
LETTERS_MAX_ALL: Final = 20_000  # over all queues
HEALTHY_MAX: Final = 1_000
COMPARED_MAX: Final = 500  # letters of one signature whose payloads are compared
FEATURES_MAX: Final = 2_000  # different values that are counted of one signature
PAYLOAD_BYTES_MAX: Final = 65_536  # larger payloads are not compared
VALUE_CHARS_MAX: Final = 80
SHARES_MAX: Final = 5
SAMPLES_MAX: Final = 3
STEPS: Final = 24
STEP_US: Final = 3_600_000_000
COMMON: Final = 0.6  # of the failed ones at least have it …
GAP: Final = 0.3  # … and by this much more than the healthy ones
ABSENT: Final = "(absent)"
PRESENT: Final = "(present)"
Feature = tuple[str, str]  # a field, and its value as JSON


class Found:
    """What is known of one signature."""

    def __init__(self, id: str, text: str) -> None:
        self.id = id
        self.text = text
        self.count = 0
        self.compared = 0
        self.trend = [0] * STEPS
        self.first_at = self.last_at = 0
        self.reasons: Counter[str] = Counter()
        self.samples: list[str] = []
        self.features: Counter[Feature] = Counter()

    def add(self, letter: Message, trend_from: int) -> None:
        """One more letter, oldest first."""
        assert letter.pushed_at is not None
        at = to_micros(letter.pushed_at, "pushed_at")
        self.count += 1
        self.first_at, self.last_at = min(self.first_at or at, at), max(self.last_at, at)
        step = (at - trend_from) // STEP_US
        if 0 <= step < STEPS:
            self.trend[step] += 1
        self.reasons[(letter.headers or {}).get(DEAD_REASON, "")] += 1
        self.samples = [*self.samples, str(letter.id)][-SAMPLES_MAX:]
        if self.compared < COMPARED_MAX:
            self.compared += 1
            count_features(self.features, letter)


def report(shard: Shard, names: Iterable[str] | None, limit: int) -> tuple[SignatureReport, Ticket]:
    """The signatures of some queues, or of all that have dead letters; the most frequent first."""
    if names is None:
        with_letters, ticket = shard.look(lambda now: _with_letters(shard))
        letters_max = max(100, min(LETTERS_MAX, LETTERS_MAX_ALL // max(1, len(with_letters))))
    else:
        with_letters, letters_max = list(names), LETTERS_MAX
        _, ticket = shard.look(lambda now: [admin.queue_named(shard.core, name) for name in with_letters])
    trend_from = (shard.clock.now() // STEP_US + 1 - STEPS) * STEP_US
    queues: list[SampledQueue] = []
    views: list[SignatureView] = []
    for name in with_letters:
        sampled, some = _of_queue(shard, name, letters_max, trend_from)
        queues.append(sampled)
        views += some
    views.sort(key=lambda view: (-view.count, view.signature))
    return SignatureReport(views[:limit], queues, to_datetime(trend_from), STEP_US / 1e6), ticket


def _with_letters(shard: Shard) -> list[str]:
    """Queues whose dead letters are not all dealt with."""
    names = shard.core.by_name
    waiting = [name for name, queue in names.items() if name.endswith(DLQ_SUFFIX) and queue.groups[0].backlog]
    return sorted(origin for name in waiting if (origin := name.removesuffix(DLQ_SUFFIX)) in names)


def _of_queue(shard: Shard, name: str, letters_max: int, trend_from: int) -> tuple[SampledQueue, list[SignatureView]]:
    found: dict[str, Found] = {}
    looked_at = 0
    total, start, end = shard.look(lambda now: _range(shard.core.by_name.get(name + DLQ_SUFFIX), letters_max))[0]
    while start < end:
        letters, start = some_letters(shard, name + DLQ_SUFFIX, start, end)
        for letter in letters:
            id, text = letter_signature(letter)
            if id not in found:
                found[id] = Found(id, text)
            found[id].add(letter, trend_from)
            looked_at += 1
    healthy: Counter[Feature] = Counter()
    compared = 0
    for message in _healthy(shard, name) if found else ():
        compared += 1
        count_features(healthy, message)
    views = [_view(name, signature, healthy, compared) for signature in found.values()]
    return SampledQueue(name, total, looked_at, compared, is_sampled=total > looked_at), views


def _range(dlq: Queue | None, letters_max: int) -> tuple[int, int, int]:
    """How many letters wait, and the offsets of the newest."""
    if dlq is None:
        return 0, 0, 0
    progress, end = dlq.groups[0].progress[0], dlq.partitions[0].end
    return dlq.groups[0].backlog, max(progress.base, end - letters_max), end


def _healthy(shard: Shard, name: str) -> Iterator[Message]:
    """The newest messages that the default group is done with and that did not die."""

    def question(now: int) -> list[Piece]:
        queue = shard.core.by_name.get(name)
        if queue is None:
            return []
        pieces: list[Piece] = []
        share = max(1, HEALTHY_MAX // len(queue.partitions))
        for partition in queue.partitions[:HEALTHY_MAX]:
            progress = queue.groups[0].progress[partition.id]
            dead = progress.dead_offsets or ()
            first = max(partition.start, partition.end - 2 * share)
            offsets = [
                offset
                for offset in partition.kept_from(first, 2 * share)
                if progress.state_of(offset) == SETTLED and offset not in dead
            ]
            if offsets:
                pieces += pieces_of(partition, offsets[-share:])
        return pieces

    pieces, _ = browse.look_and_load(shard, question)
    return browse.messages(name, pieces)


def _view(queue: str, found: Found, healthy: Counter[Feature], compared: int) -> SignatureView:
    return SignatureView(
        signature=found.id,
        text=found.text,
        queue=queue,
        count=found.count,
        trend=found.trend,
        first_seen_at=to_datetime(found.first_at),
        last_seen_at=to_datetime(found.last_at),
        reasons=dict(found.reasons),
        samples=found.samples,
        shares=shares(found.features, found.compared, healthy, compared),
    )


def shares(failed: Counter[Feature], failed_count: int, healthy: Counter[Feature], healthy_count: int) -> list[Share]:
    """What most of the failed ones have and few of the healthy ones do, the clearest first."""
    if not failed_count or not healthy_count:
        return []
    candidates: list[Share] = []
    for field, value in {*failed, *((name, value) for name, value in healthy if value == PRESENT)}:
        in_failed, in_healthy = failed[field, value] / failed_count, healthy[field, value] / healthy_count
        shown = value
        if value == PRESENT and in_failed < in_healthy:
            shown, in_failed, in_healthy = ABSENT, 1 - in_failed, 1 - in_healthy
        if in_failed >= COMMON and in_failed - in_healthy >= GAP:
            candidates.append(Share(field, shown, round(100 * in_failed, 1), round(100 * in_healthy, 1)))
    # A field that only the failed ones have says less than its value does.
    telling = {share.field for share in candidates if share.value not in (PRESENT, ABSENT)}
    clear = [share for share in candidates if share.value != PRESENT or share.field not in telling]
    clear.sort(key=lambda share: (share.healthy_percent - share.failed_percent, share.field, share.value))
    return clear[:SHARES_MAX]


def count_features(features: Counter[Feature], message: Message) -> None:
    """Add what a message is like: its key, its headers, and the plain values of its payload, two levels deep."""
    for feature in _features(message):
        if feature in features or len(features) < FEATURES_MAX:
            features[feature] += 1


def _features(message: Message) -> set[Feature]:
    features: set[Feature] = set()
    if message.key is not None:
        features |= {("key", _text(message.key)), ("key", PRESENT)}
    for name, value in (message.headers or {}).items():
        if name not in DEAD_HEADERS:
            features |= {(f"header:{name}", _text(value)), (f"header:{name}", PRESENT)}
    payload = payload_bytes(message)
    if len(payload) <= PAYLOAD_BYTES_MAX:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # not JSON: nothing to compare
            _add_fields(features, msgspec.json.decode(payload), "", 2)
    return features


def _add_fields(features: set[Feature], value: Any, path: str, depth: int) -> None:
    if isinstance(value, dict) and depth:
        for name, member in value.items():
            _add_fields(features, member, f"{path}.{name}" if path else str(name), depth - 1)
    if path:
        features.add((path, PRESENT))
        if not isinstance(value, dict | list):
            features.add((path, _text(value)))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:VALUE_CHARS_MAX]
