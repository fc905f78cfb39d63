"""The space of the roll-ups: 1,000 queues, all of them busy, for a year, in 50 MB."""

from __future__ import annotations

import zlib

import numpy as np

from penstock.rollups.files import MAGIC, MemoryStore, RollupFiles, file_name
from penstock.rollups.slices import BUCKETS, MIDDLES, Slice, decode, encode
from penstock.rollups.tiers import BROKER_COLUMNS, COLUMNS, TIERS, Tier
from penstock.telemetry.meter import GRID

QUEUES = 1_000
BYTES_MAX = 50_000_000
FRAME_HEAD_BYTES = 8


def busy_slice(at: int, seconds: int, seed: int = 1) -> Slice:
    """Every queue has traffic, retries and latencies of its own, none of which repeats."""
    rng = np.random.default_rng(seed)
    rate = rng.lognormal(1.5, 1.5, QUEUES) * seconds
    pushed = rng.poisson(rate)
    delivered = np.maximum(0, pushed + rng.integers(-3, 4, QUEUES))
    acked = np.maximum(0, delivered - rng.integers(0, 3, QUEUES))
    ready, leased, delayed = rng.poisson(20, QUEUES), rng.poisson(5, QUEUES), rng.poisson(1, QUEUES)
    nothing = np.zeros(QUEUES, np.int64)
    counters = [pushed, delivered, acked, rng.poisson(rate * 0.002), nothing, rng.poisson(rate * 1e-4), nothing]
    age = rng.lognormal(6, 1, QUEUES).astype(np.int64)
    gauges = [ready, leased, delayed, nothing + 7, ready + leased + delayed, age]
    cells = []
    for row, count in enumerate(np.minimum(delivered, 2_000), 1):
        middle = rng.integers(BUCKETS // 3, 2 * BUCKETS // 3)
        buckets = np.clip(rng.normal(middle, 2.6, count).round(), 0, BUCKETS - 1).astype(np.int64)
        found, counts = np.unique(buckets, return_counts=True)
        cells.append(np.column_stack([np.full(len(found), row), found, counts]))
    values = np.column_stack([*counters, *gauges]).astype(np.int64)
    broker = np.arange(len(BROKER_COLUMNS))
    return Slice(at, np.arange(1, QUEUES + 1), values, broker, np.concatenate(cells))


def slices_max(tier: Tier) -> int:
    """As many as there can be: a file goes when its newest slice is too old."""
    return (tier.keep_seconds + tier.file_seconds) // tier.seconds


def test_a_year_of_a_thousand_busy_queues_fits_into_50_mb():
    names = {id: f"shop.orders.{id:04d}" for id in range(1, QUEUES + 1)}
    sizes = {}
    for tier in TIERS:
        frame = max(len(encode(busy_slice(0, tier.seconds, seed), {})) for seed in (1, 2)) + FRAME_HEAD_BYTES
        files = 2 + tier.keep_seconds // tier.file_seconds
        sizes[tier.name] = slices_max(tier) * frame + files * len(encode(busy_slice(0, 1), names))

    assert TIERS[-1].keep_seconds >= 365 * 86_400
    assert sum(sizes.values()) <= BYTES_MAX, sizes


def test_bytes_say_what_was_encoded_but_for_what_is_rounded():
    part = busy_slice(1_800_000_000, 60)
    found, names = decode(encode(part, {1: "mail"}))

    exact = [number for number, name in enumerate(COLUMNS) if name != "oldest_age_ms"]
    age = COLUMNS.index("oldest_age_ms")
    assert (found.at, names) == (part.at, {1: "mail"})
    assert (found.ids == part.ids).all()
    assert (found.values[:, exact] == part.values[:, exact]).all()
    assert (found.broker == part.broker).all()
    assert (found.cells[:, :2] == part.cells[:, :2]).all()
    np.testing.assert_allclose(found.cells[:, 2], part.cells[:, 2], rtol=1 / 8)
    np.testing.assert_allclose(found.values[:, age], part.values[:, age], rtol=1 / 8)


def test_a_slice_without_queues_or_latencies_has_bytes_too():
    nothing = np.zeros((0, 3), np.int64)
    part = Slice(60, nothing[:, 0], np.zeros((0, len(COLUMNS)), np.int64), np.zeros(5, np.int64), nothing)

    found, _ = decode(encode(part, {}))

    assert (found.at, len(found.ids), found.cells.shape, found.values.shape) == (60, 0, (0, 3), (0, len(COLUMNS)))


def test_the_bytes_of_a_file_are_a_promise():
    """Golden: a change of these bytes needs another version in MAGIC."""
    part = Slice(
        1_800_000_000,
        np.array([-1, 7]),
        np.array([[9] * 7 + [5, 3, 1, 0, 9, 1000], [9, 8, 7, 1, 0, 0, 0, 5, 3, 1, 2, 9, 12]]),
        np.array([1, 2, 3, 4, 5]),
        np.array([[7, 60, 5], [7, 61, 900]]),
    )
    store = MemoryStore()
    RollupFiles(store).append(TIERS[1], [part], {7: "mail"})
    name = file_name(TIERS[1], part.at)
    data = store.read(name)
    (found, names), *_ = RollupFiles(store).read(TIERS[1], 0, 1 << 40)

    assert name == "minute-01800000000.rollup"
    assert data[:8] == MAGIC == b"PSROLL\x00\x01"
    assert names == {7: "mail"}
    assert (found.cells == [[7, 60, 5], [7, 61, 960]]).all()
    assert zlib.decompress(data[16:]).hex() == GOLDEN  # not deflated: that may differ by library


def test_the_middle_of_a_bucket_is_within_twelve_percent_of_everything_in_it():
    bounds = (*GRID[1::2], GRID[-1])
    for middle, low, high in zip(MIDDLES[1:], bounds, bounds[1:], strict=False):
        assert max(middle / low, high / middle) <= 1.12 * 1.0001


GOLDEN = (
    "96ce6b49d2008107a46d61696c92a162c402ff089d92a162c402090992a162c40200ff92a162c40200ff92a162c402090192"
    "a162c402090092a162c402090092a162c402090092a162c402050592a162c402030392a162c402010192a162c402000292a162c402000092a162c4023f0e9501020304059492a162c4010792a162c4010292a162c4023c0192a162c402053f"
)
