"""Grants, roles and principals: who may do what, on which queues.

A grant is an action and a pattern of queues: `push:orders`, `consume:shop.*`, `read:*`. A pattern is a name, a prefix
that ends with `*`, or `*`. The name of a queue includes its dead-letter queue. A role is a named list of grants;
`viewer:shop.*` is the role with every `*` of it narrowed to that pattern. What no grant allows is denied.

Names that begin with `penstock.` belong to the broker: `*` does not include them, only a pattern that spells the
prefix out does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock.errors import InvalidField, NotAuthorised
from penstock.model import DLQ_SUFFIX, RESERVED_PREFIX, check_name
from penstock.operations.base import SOME_QUEUE, Action
from penstock.refusals import suggestion

logger: Final = logging.getLogger("penstock.access")

EVERY_QUEUE: Final = "*"
BROKER: Final = ""  # in place of a queue: the broker as a whole
ANSWERS_MAX: Final = 10_000  # that a principal keeps

# Actions on the broker as a whole: a pattern of queues would mean nothing.
BROKER_ACTIONS: Final = frozenset({Action.OPERATE, Action.EXPORT})

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "producer": ("push:*",),
    "consumer": ("consume:*",),
    "viewer": ("monitor:*",),
    "reader": ("monitor:*", "read:*"),
    "operator": ("monitor:*", "read:*", "unmask:*", "manage:*"),
    "owner": (
        *(f"{action}:*" for action in Action),
        *(f"{action}:{RESERVED_PREFIX}*" for action in Action if action not in BROKER_ACTIONS),
    ),
}


class Grant(msgspec.Struct, frozen=True, order=True):
    """One action on the queues that a pattern matches."""

    action: Action
    pattern: str

    def __str__(self) -> str:
        return f"{self.action}:{self.pattern}"

    def matches(self, queue: str) -> bool:
        """Whether the pattern includes this queue; `BROKER` is included by `*` alone, `SOME_QUEUE` by all."""
        pattern = self.pattern
        if queue == SOME_QUEUE:
            return True
        if queue.startswith(RESERVED_PREFIX) and not pattern.startswith(RESERVED_PREFIX):
            return False
        source = queue.removesuffix(DLQ_SUFFIX)  # `shop.*` does not include `shop.dlq`, which belongs to `shop`
        if pattern.endswith("*"):
            return source.startswith(pattern[:-1])
        return pattern in (queue, source)


class Principal:
    """Somebody who was authenticated, and what they may do.

    One object stands for a principal as long as it is connected: a change of its grants is seen by every connection
    at once, and `revoke` calls whoever must end something. It is changed on the event loop; any thread may ask it.
    """

    __slots__ = (
        "_answers",
        "_derived",
        "_on_revoked",
        "_only",
        "credential",
        "grants",
        "is_revoked",
        "name",
        "namespace",
    )

    def __init__(self, name: str, grants: Iterable[Grant] = (), namespace: str = "", credential: str = "") -> None:
        self.name = name
        self.namespace = namespace
        self.grants = tuple(grants)
        self.credential = credential  # what proved who it is: owner, key:<id>, jwt, certificate, user, session
        self.is_revoked = False
        self._answers: dict[tuple[Action, str], bool] = {}
        self._on_revoked: set[Callable[[], object]] = set()
        self._derived: set[Principal] = set()
        self._only: frozenset[Action] | None = None  # the actions to which it is confined, whatever is granted

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    @property
    def owner(self) -> str:
        """Under whose name its producers, sinks, members, workers and leases are kept; "" for those of the owner.

        Whoever uses a broker without access control, or by the key of its run, is the owner of what was there before.
        """
        is_owner = self.name in OWNERS and self.grants == OWNER and not self.namespace
        return "" if is_owner else owner_name(self.name, self.namespace)

    def may(self, action: Action, queue: str) -> bool:
        """Whether some grant allows this. `queue` is `BROKER` when the broker as a whole is meant."""
        answer = self._answers.get((action, queue))
        return self._decide(action, queue) if answer is None else answer

    def _decide(self, action: Action, queue: str) -> bool:
        # Taken before the grants are read: when they change meanwhile, the answer goes where nobody looks any more.
        answers = self._answers
        if len(answers) >= ANSWERS_MAX:
            answers.clear()
        allowed = not self.is_revoked and any(grant.action is action and grant.matches(queue) for grant in self.grants)
        answers[action, queue] = allowed
        return allowed

    def patterns(self, action: Action) -> frozenset[str]:
        """The patterns of queues on which this is allowed: who has the same sees the same."""
        return frozenset(grant.pattern for grant in self.grants if grant.action is action)

    def may_everywhere(self, action: Action) -> bool:
        """Whether this is allowed on every queue there is or will be."""
        return self.may(action, BROKER) and self.may(action, RESERVED_PREFIX)

    def require(self, action: Action, queue: str) -> None:
        """Raise `NotAuthorised` unless this is allowed."""
        if not self.may(action, queue):
            raise denial(self, action, queue)

    def change(self, grants: Iterable[Grant], namespace: str) -> None:
        """Replace the grants; what was decided before is forgotten."""
        granted = tuple(grants)
        self.grants = tuple(grant for grant in granted if self._only is None or grant.action in self._only)
        self.namespace = namespace
        self._answers = {}
        for derived in self._derived:
            derived.change(granted, namespace)

    def derived(self, credential: str, only: frozenset[Action] | None = None) -> Principal:
        """This principal, for another credential that proves it: revoked together, with the same grants.

        With `only`, of the same grants those for these actions.
        """
        derived = Principal(self.name, (), self.namespace, credential)
        derived._only = only
        derived.change(self.grants, self.namespace)
        self._derived.add(derived)
        self.once_revoked(derived.revoke)
        return derived

    def release(self, derived: Principal) -> None:
        """Take back `derived`: revoke it, and keep nothing of it."""
        self._derived.discard(derived)
        self.forget(derived.revoke)
        derived.revoke()

    def revoke(self) -> None:
        """Deny everything from now on, and end what was begun."""
        self.is_revoked = True
        self._answers = {}
        callbacks, self._on_revoked = self._on_revoked, set()
        for end in callbacks:
            try:
                end()
            except Exception:  # the others must end all the same
                logger.exception("a connection or session of a revoked principal could not be closed")

    def once_revoked(self, end: Callable[[], object]) -> None:
        """Have `end` called when the principal is revoked; at once when it is revoked already."""
        if self.is_revoked:
            end()
        else:
            self._on_revoked.add(end)

    def forget(self, end: Callable[[], object]) -> None:
        """Take back `once_revoked`."""
        self._on_revoked.discard(end)


def owner_name(name: str, namespace: str) -> str:
    """The name under which the things of a principal are kept."""
    return f"{namespace}/{name}" if namespace else name


def denial(principal: Principal, action: Action, queue: str) -> NotAuthorised:
    """The error for who may not do this: it names the missing grant."""
    if queue == BROKER:
        what, grant = f"{action} on the broker", f"{action}:*"
    elif queue == SOME_QUEUE:
        what, grant = f"{action} on any queue", f"{action}:<queue>"
    else:
        what, grant = f"{action} on queue {queue!r}", f"{action}:{queue}"
    return NotAuthorised(f"{principal.name!r} lacks the permission {what}", hint=f"ask an owner for the grant {grant}")


def hidden(principal: Principal, action: Action, what: str) -> NotAuthorised:
    """The error for something that has an id: the same whether it is out of sight or does not exist."""
    return NotAuthorised(
        f"{principal.name!r} lacks the permission {action} on {what}",
        hint="it does not exist, or a grant for its queue is missing",
    )


# From text.


def parse_grants(
    texts: Iterable[str], roles: Mapping[str, Iterable[str]] = ROLES, prefix: str = ""
) -> tuple[Grant, ...]:
    """Grants from texts such as `push:orders` or `viewer:shop.*`, inside `prefix` if that is given.

    Raises `InvalidField` on an action or role that does not exist and on a pattern that cannot match, or that reaches
    outside the prefix.
    """
    grants: dict[Grant, None] = {}
    for text in texts:
        for grant in _parse(text, roles):
            grants[_inside(grant, prefix, text)] = None
    return tuple(grants)


def _parse(text: object, roles: Mapping[str, Iterable[str]]) -> Iterable[Grant]:
    if not isinstance(text, str):
        raise InvalidField(f"grants: {text!r} is not text", hint=_HINT)
    names, _, pattern = text.partition(":")
    if pattern or ":" in text:
        _check_pattern(pattern, text)
    for name in names.split(","):
        if name in roles:
            for part in roles[name]:
                for grant in _parse(part, {}):
                    yield _narrowed(grant, pattern)
        elif name in _ACTIONS:
            yield _checked(Grant(Action(name), pattern or EVERY_QUEUE), text)
        else:
            near = suggestion(name, (*_ACTIONS, *roles))
            raise InvalidField(f"grants: {text!r} is not an action or a role; {near}", hint=_HINT)


def _narrowed(grant: Grant, pattern: str) -> Grant:
    """A grant of a role, for these queues only. The broker as a whole has no part that could be granted."""
    if not pattern or pattern == EVERY_QUEUE or grant.pattern != EVERY_QUEUE:
        return grant
    if grant.action in BROKER_ACTIONS:
        raise InvalidField(
            f"grants: {grant.action} is for the broker as a whole, not for {pattern!r}",
            hint="grant the role without a pattern, or single actions such as manage:orders",
        )
    return Grant(grant.action, pattern)


def _checked(grant: Grant, text: str) -> Grant:
    if grant.action in BROKER_ACTIONS and grant.pattern != EVERY_QUEUE:
        raise InvalidField(f"grants: {text!r}: {grant.action} is for the broker as a whole", hint=f"{grant.action}:*")
    return grant


def _check_pattern(pattern: str, text: str) -> None:
    stem = pattern.removesuffix("*")
    if not pattern or "*" in stem:
        raise InvalidField(f"grants: {text!r}: {pattern!r} is not a pattern of queue names", hint=_HINT)
    if stem:
        check_name(stem.rstrip(".") or stem, "grants")


def _inside(grant: Grant, prefix: str, text: str) -> Grant:
    """The grant, within the queues of a namespace: `*` means all of these."""
    if not prefix:
        return grant
    if grant.action in BROKER_ACTIONS:
        raise InvalidField(f"grants: {text!r} applies to the whole broker and cannot be granted in a namespace")
    if grant.pattern == EVERY_QUEUE:
        return Grant(grant.action, prefix + EVERY_QUEUE)
    if not grant.pattern.startswith(prefix):
        raise InvalidField(f"grants: {text!r} reaches outside the namespace", hint=f"its queues begin with {prefix!r}")
    return grant


OWNERS: Final = ("local", "owner")  # with all grants: whoever runs the broker
_ACTIONS: Final = tuple(str(action) for action in Action)
_HINT: Final = "a grant looks like push:orders, consume:shop.* or viewer:*"

OWNER: Final = parse_grants(("owner",))
# Whoever uses a broker without access control, and whoever is in the same process.
LOCAL: Final = Principal("local", OWNER)
# Whoever has not said yet who they are.
NOBODY: Final = Principal("nobody")
