"""Who lives and whose turn it is, from looks alone: no server, no clock."""

from __future__ import annotations

from penstock.postgres.membership import BROKEN_LOOKS, DRAIN, STILL_LOOKS, TURN_LOOKS, Looks, Node, View, rendezvous

SHARD_ID = bytes(range(16))


class Cluster:
    """Nodes whose counters move, unless they are dead."""

    def __init__(self, *names: str, owner: str = "") -> None:
        self.counters = dict.fromkeys(names, 0)
        self.dead: set[str] = set()
        self.broken: set[str] = set()
        self.drained: set[str] = set()
        self.owner = owner
        self.looks = Looks()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            for name in self.counters.keys() - self.dead:
                self.counters[name] += 1
            nodes = {
                name: Node(name, "{}", counter, 0, DRAIN if name in self.drained else "", name not in self.broken)
                for name, counter in self.counters.items()
            }
            self.looks.saw(View(SHARD_ID, self.owner, 1, 0, nodes))

    def turn(self) -> list[str]:
        return [name for name in sorted(self.counters.keys() - self.dead) if self.looks.is_turn_of(name)]


def test_a_node_whose_counter_stands_still_over_six_looks_is_dead():
    cluster = Cluster("a", "b", owner="a")
    cluster.look()
    cluster.dead.add("a")
    cluster.look(STILL_LOOKS - 1)
    assert not cluster.looks.is_dead("a")
    cluster.look()
    assert cluster.looks.is_dead("a")
    assert not cluster.looks.is_dead("b")


def test_two_looks_are_enough_when_its_connection_is_gone():
    cluster = Cluster("a", "b", owner="a")
    cluster.look()
    cluster.dead.add("a")
    cluster.broken.add("a")
    cluster.look(BROKEN_LOOKS)
    assert cluster.looks.is_dead("a")


def test_a_node_that_moves_again_lives_again():
    cluster = Cluster("a", owner="a")
    cluster.dead.add("a")
    cluster.look(STILL_LOOKS + 2)
    cluster.dead.clear()
    cluster.look()
    assert not cluster.looks.is_dead("a")


def test_nobody_takes_over_while_the_owner_lives():
    cluster = Cluster("a", "b", "c", owner="a")
    cluster.look(20)
    assert cluster.turn() == []


def test_the_living_take_their_turns_in_rendezvous_order():
    cluster = Cluster("a", "b", "c", "d", owner="a")
    cluster.look()
    cluster.dead.add("a")
    order = rendezvous(SHARD_ID, ["b", "c", "d"])
    while not cluster.turn():
        cluster.look()
    assert cluster.turn() == order[:1]
    cluster.look(TURN_LOOKS)
    assert set(cluster.turn()) == set(order[:2])


def test_a_shard_that_was_given_back_is_taken_at_the_first_look():
    cluster = Cluster("b", "c", owner="")
    cluster.look()
    assert cluster.turn() == rendezvous(SHARD_ID, ["b", "c"])[:1]


def test_a_drained_node_and_an_embedded_one_are_passed_over():
    cluster = Cluster("b", "c", "embedded-1", owner="")
    first, second = rendezvous(SHARD_ID, ["b", "c"])
    cluster.drained.add(first)
    cluster.look()
    assert cluster.looks.is_turn_of(second)


def test_the_order_does_not_depend_on_who_asks():
    names = [f"node-{number}" for number in range(9)]
    assert rendezvous(SHARD_ID, names) == rendezvous(SHARD_ID, reversed(names))
    assert rendezvous(SHARD_ID, names) != rendezvous(bytes(16), names)
