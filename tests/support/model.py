"""What a queue should do, in plain dictionaries and lists: slow, obvious, and compared with the real one.

Each group has one `State` per message. Time moves through `tick`. Nothing is predicted about which of several ready
messages a lease gets; `check_lease` says what may not happen, and `deliverable` how many there were to be had.
Instants are µs and multiples of a tick of the timer wheel, so that its rounding shows nowhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

TICK = 1024
BACKOFF = 1_024_000
LIVE = ("fresh", "ready", "leased", "waiting")
Place = tuple[str, int]  # partition, offset
Came = tuple[Place, int, bytes, str | None, int]  # a delivery: attempt, payload, key and priority


@dataclass(frozen=True, slots=True)
class Logged:
    """A message as it was pushed."""

    payload: bytes
    pushed_at: int
    priority: int
    due: int
    expires_at: int
    key: str | None
    max_attempts: int


@dataclass(slots=True)
class State:
    """Where one message stands in one group. `fresh` is one that nobody has had yet."""

    phase: str = "fresh"
    attempts: int = 0
    due: int = 0
    nonce: int = 0
    holds: bool = False  # it was leased and is not settled: on ordered queues others wait behind it


@dataclass(slots=True)
class GroupModel:
    """A group: its messages from where it started on."""

    starts: dict[str, int]
    states: dict[Place, State] = field(default_factory=dict)


class Model:
    """A queue, its groups and its dead letters."""

    def __init__(self, partitions: list[str], *, max_attempts: int, dedup_us: int, ordering: str = "none") -> None:
        self.ordering = ordering
        self.max_attempts = max_attempts
        self.dedup_us = dedup_us
        self.now = 0
        self.gate_us = 0  # how long the queue holds every message back
        self.paused = False
        self.log: dict[str, list[Logged]] = {name: [] for name in partitions}
        self.groups: dict[str, GroupModel] = {}
        self.dedup: dict[str, tuple[Place, int]] = {}
        self.leases: dict[int, tuple[str, int]] = {}  # nonce: group, deadline
        self.letters: list[tuple[str, Place]] = []  # dead letters: group, origin
        self.add_group("default")

    # pushing

    def known(self, dedup_key: str | None) -> Place | None:
        """Where the message of a dedup key went, within the window."""
        place, at = self.dedup.get(dedup_key or "", (None, 0))
        return place if at > self.now - self.dedup_us else None

    def pushed(self, place: Place, logged: Logged, dedup_key: str | None) -> None:
        partition, offset = place
        assert offset == len(self.log[partition]), f"{place} is not the next offset of its partition"
        self.log[partition].append(logged)
        for group in self.groups.values():
            group.states[place] = State()
        if dedup_key is not None:
            self.dedup[dedup_key] = (place, self.now)

    def message(self, place: Place) -> Logged:
        return self.log[place[0]][place[1]]

    # leasing

    def is_ready(self, group: str, place: Place) -> bool:
        state = self.groups[group].states[place]
        return state.phase == "ready" or (state.phase == "fresh" and self.message(place).due <= self.now)

    def ready(self, group: str) -> list[Place]:
        return [place for place in sorted(self.groups[group].states) if self.is_ready(group, place)]

    def deliverable(self, group: str, only: str | None = None) -> list[Place]:
        """What a lease of any size could get now, of one partition if told so."""
        if self.paused:
            return []
        ready = [place for place in self.ready(group) if only in (None, place[0]) and self._is_through(group, place)]
        if self.ordering == "none":
            return ready
        found: list[Place] = []
        taken: set[tuple[str, str]] = set()
        for place in ready:
            chain = self._chain(place)
            if chain is None or (chain not in taken and self._may_pass(group, place)):
                found.append(place)
                if self.ordering == "key" and chain is not None:
                    taken.add(chain)
        return found

    def _is_through(self, group: str, place: Place) -> bool:
        state = self.groups[group].states[place]
        return state.phase != "fresh" or self.message(place).pushed_at + self.gate_us <= self.now

    def _chain(self, place: Place) -> tuple[str, str] | None:
        """What a message must not overtake: its partition, or its key within it; None when it is free."""
        if self.ordering == "partition":
            return place[0], ""
        key = self.message(place).key
        return None if key is None else (place[0], key)

    def _may_pass(self, group: str, place: Place) -> bool:
        """Whether nothing of the same chain holds this message back."""
        if self._chain(place) is None:
            return True
        for other, state in self.groups[group].states.items():
            if other == place or state.phase not in LIVE or self._chain(other) != self._chain(place):
                continue
            if self.ordering == "partition" and (
                state.phase == "leased" or (other < place and state.phase == "waiting")
            ):
                return False
            if self.ordering == "key" and state.holds:
                return False
        return True

    def leased(self, group: str, nonce: int, deadline: int, deliveries: list[Came]) -> None:
        """A lease happened: every delivery was to be had, with the right number, bytes, key and priority."""
        self._check_order(group, [place for place, *_ in deliveries])
        for place, attempt, *content in deliveries:
            state = self.groups[group].states[place]
            assert self.is_ready(group, place), f"{place} was delivered to {group} while {state}"
            assert self._is_through(group, place), f"{place} was delivered to {group} before the queue's delay was over"
            assert attempt == state.attempts + 1, f"{place}: attempt {attempt} after {state}"
            sent = self.message(place)
            assert content == [sent.payload, sent.key, sent.priority], f"{place} is not what was pushed: {content}"
        for place, *_ in deliveries:
            state = self.groups[group].states[place]
            state.phase, state.nonce, state.holds = "leased", nonce, True
        if deliveries:
            self.leases[nonce] = (group, deadline)

    def _check_order(self, group: str, places: list[Place]) -> None:
        """Nothing overtakes what it may not overtake; among fresh messages of one priority the offset decides."""
        if self.ordering != "none":
            for place in places:
                assert self._may_pass(group, place), f"{place} overtook an unsettled message of its partition or key"
        if self.ordering == "key":
            chains = Counter(chain for place in places if (chain := self._chain(place)) is not None)
            assert not chains or max(chains.values()) == 1, f"two messages of one key in one lease: {places}"
        fresh = [place for place in self.ready(group) if self._is_plain(group, place)]
        if self.ordering == "key":
            fresh = [place for place in fresh if self._may_pass(group, place)]
        for place in places:
            if self._is_plain(group, place):
                rank = self._rank(place)
                ahead = [p for p in fresh if p[0] == place[0] and p[1] < place[1] and self._rank(p) == rank]
                assert set(ahead) <= set(places), f"{place} was delivered before {ahead}"

    def _is_plain(self, group: str, place: Place) -> bool:
        return self.groups[group].states[place].phase == "fresh" and not self.message(place).due

    def _rank(self, place: Place) -> tuple[int, tuple[str, str] | None]:
        return self.message(place).priority, self._chain(place) if self.ordering == "key" else None

    def held(self, nonce: int) -> list[Place]:
        if nonce not in self.leases:
            return []
        states = self.groups[self.leases[nonce][0]].states
        return [place for place, state in states.items() if state.phase == "leased" and state.nonce == nonce]

    # settling

    def settle(self, nonce: int, places: list[Place], how: str, delay_us: int | None = None) -> None:
        group = self.leases[nonce][0]
        for place in places:
            self._settle(group, place, how, delay_us)
        if not self.held(nonce):
            del self.leases[nonce]

    def _settle(self, group: str, place: Place, how: str, delay_us: int | None) -> None:
        state = self.groups[group].states[place]
        if how in ("acked", "released"):
            state.phase = "acked" if how == "acked" else "ready"
            return
        attempt = state.attempts + 1
        limit = self.message(place).max_attempts or self.max_attempts
        if how == "rejected" or (how == "retried" and attempt >= limit):
            state.phase = "dead"
            self.letters.append((group, place))
            return
        state.attempts = attempt if how == "retried" else state.attempts
        wait = BACKOFF * 2 ** (attempt - 1) if delay_us is None else delay_us
        state.phase, state.due = ("waiting", self.now + wait) if wait else ("ready", 0)

    def drop(self, group: str, place: Place, why: str) -> None:
        self.groups[group].states[place].phase = why

    def stopped(self) -> None:
        """The process ended: what was leased comes back, the attempt counted."""
        for name, group in self.groups.items():
            for place, state in group.states.items():
                if state.phase == "leased":
                    self._settle(name, place, "retried", 0)
        self.leases.clear()

    # time

    def tick(self, now: int) -> None:
        """Timers, then leases that ran out, then expiries."""
        self.now = now
        for group in self.groups.values():
            for state in group.states.values():
                if state.phase == "waiting" and state.due <= now:
                    state.phase = "ready"
        for nonce, (_, deadline) in list(self.leases.items()):
            if deadline <= now:
                self.settle(nonce, self.held(nonce), "retried")
        for name, group in self.groups.items():
            for place, state in group.states.items():
                if 0 < self.message(place).expires_at <= now and state.phase in ("fresh", "ready", "waiting"):
                    self.drop(name, place, "expired")

    # operators

    def add_group(self, name: str) -> None:
        self.groups[name] = GroupModel({})
        self.seek(name, dict.fromkeys(self.log, 0))

    def seek(self, name: str, starts: dict[str, int]) -> None:
        group = self.groups[name]
        for partition, start in starts.items():
            group.starts[partition] = start
            for place in [place for place in group.states if place[0] == partition]:
                del group.states[place]
            for offset in range(start, len(self.log[partition])):
                group.states[partition, offset] = State()
        for nonce in [nonce for nonce in self.leases if not self.held(nonce)]:
            del self.leases[nonce]

    def redrivable(self) -> list[tuple[str, Place]]:
        """Dead letters whose message is still dead; a seek takes it away from them."""
        states = {name: group.states for name, group in self.groups.items()}
        return [(name, at) for name, at in self.letters if at in states[name] and states[name][at].phase == "dead"]

    def redrive(self, chosen: list[tuple[str, Place]]) -> None:
        for group, place in chosen:
            self.letters.remove((group, place))
            self.groups[group].states[place] = State("ready")

    # accounts

    def stats(self, name: str) -> Counter[str]:
        """The group's account, by the words of `GroupStats`; drops by their reason."""
        counts: Counter[str] = Counter()
        for place, state in self.groups[name].states.items():
            phase = state.phase
            if phase == "fresh":
                phase = "ready" if self.is_ready(name, place) else "waiting"
            counts[phase] += 1
        return counts
