"""One simulation: some hundred steps of clients, faults and upkeep, then everything heals and is drained."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.delivery import dedup, snapshot, upkeep
from penstock.embedded.session import Session
from penstock.model import to_micros
from tests.simulation.checkers import GROUPS, PROMISES
from tests.simulation.clients import QUEUES, Clients, lease, letters, pause
from tests.simulation.history import History, Place, Settle
from tests.simulation.world import World
from tests.support.operations import run_operation

STEPS = 250


def small_limits(patch: pytest.MonkeyPatch) -> None:
    """So small that a short simulation crosses every one of them."""
    patch.setattr(limits, "timers_near_max", 3)
    patch.setattr(limits, "segment_row_group_rows", 4)
    patch.setattr(snapshot, "SLICE", 1)
    patch.setattr(dedup, "HOT_MAX", 4)
    patch.setattr(upkeep, "CHUNK", 3)


def simulate(seed: int, steps: int = STEPS) -> History:
    """Run one seed to its end; the history is what the clients saw."""
    world = World(seed, QUEUES)
    clients = Clients(world)
    for _ in range(steps):
        _step(world, clients)
    _heal(world)
    _drain(world, clients)
    return world.history


def _step(world: World, clients: Clients) -> None:
    dice = world.rng.random()
    if dice < 0.74:
        clients.act()
    elif dice < 0.82:
        world.wait(world.rng.choice([0.001, 0.1, 1.0, 3.0, 20.0]))
    elif dice < 0.86:
        world.confirm_one()
    elif dice < 0.94:
        world.keep(world.rng.choice(HOUSEWORK), clients.act)
    elif dice < 0.97:
        world.arm()
    else:
        world.die(world.rng.choice(["power", "power", "kill", "clean"]))


def _tick(session: Session) -> Any:
    keeper = session.keeper
    assert keeper is not None
    return keeper.tick()


HOUSEWORK = (
    lambda session: run_operation(session, ops.Seal()),
    lambda session: session.checkpoint(),
    lambda session: run_operation(session, ops.Compact()),
    _tick,
)


def _heal(world: World) -> None:
    """The last fault is over."""
    world.disk.kill()
    world.die("kill")
    world.disk.kill()
    world.die("clean")
    world.disk.kill()
    for name in QUEUES:
        pause(world, name, False)


def _drain(world: World, clients: Clients) -> None:
    """Everything that is ready is leased and acknowledged, until nothing comes for a long time."""
    for seconds in (0.0, 0.01, 1.0, 5.0, 70.0, 400.0):
        world.clock.advance(seconds)
        for _ in range(20):  # each looks one share of the delays further
            world.keep(_tick, lambda: None)
            world.clock.advance(0.01)
        for queue in QUEUES:
            for group in GROUPS:
                while (row := lease(world, queue, group, 50, 600.0)).result:
                    clients.end([Settle(got, group, "ack") for got in row.result])
    while world.pending:
        world.confirm_one()
    for queue in QUEUES:
        _look(world, queue)


def _look(world: World, queue: str) -> None:
    letters(world, queue)
    world.do("operator", "stats", lambda session: run_operation(session, ops.Stats(queue)), queue=queue, drained=True)
    for partition in run_operation(world.session, ops.Groups(queue))[0]["default"]:
        _read(world, queue, partition.partition)
    while world.pending:
        world.confirm_one()
    assert world.session.shard.store is not None
    assert not world.session.shard.store.verify()


def _read(world: World, queue: str, partition: str) -> None:
    def act(session: Session) -> tuple[Any, int]:
        messages, ticket = run_operation(session, ops.Read(queue, partition, None, None, 10_000))
        found = []
        for message in messages:
            assert message.id is not None
            at = to_micros(message.pushed_at, "pushed_at")
            found.append((Place(*message.id), message.payload, message.dedup_key, at))
        return found, ticket

    world.do("operator", "read", act, queue=queue)


def broken_promises(history: History) -> list[str]:
    """What the checkers found, each with the name of its promise."""
    return [f"{promise.__name__}: {found}" for promise in PROMISES for found in promise(history)]
