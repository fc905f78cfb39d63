"""Who shall own which partition: as even as possible, with the fewest moves.

Sizes differ by at most one. The members that own most keep the larger shares, and everybody keeps as much of what it
owns as its share allows; only the rest moves. So a member that joins takes at most its own share away from others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def shares(
    owned: Mapping[str, int], wanted: Mapping[str, int], members: Sequence[str], partitions: int
) -> dict[str, int]:
    """How many partitions each member shall have; `members` are in the order in which they joined."""
    least, larger = divmod(partitions, len(members))
    ranked = sorted(members, key=lambda member: (-owned.get(member, 0), -wanted.get(member, 0)))
    return {member: least + (place < larger) for place, member in enumerate(ranked)}


def assign(owners: Sequence[str], heirs: Sequence[str], members: Sequence[str]) -> list[str]:
    """The member that each partition shall go to, or stay with.

    `owners` and `heirs` say for each partition who has it and who was to have it; "" when nobody. When there is a
    choice, a partition stays on the way that it has begun.
    """
    if not members:
        return [""] * len(owners)
    wanted = Counter(heirs)
    room = shares(Counter(owners), wanted, members, len(owners))
    chosen = [""] * len(owners)
    # What stays: first what was not about to move anyway. Then what goes on as planned. Then whoever has room.
    settled = [number for number, owner in enumerate(owners) if owner == heirs[number]]
    moving = [number for number, owner in enumerate(owners) if owner != heirs[number]]
    for numbers, candidates in ((settled, owners), (moving, owners), (range(len(owners)), heirs)):
        for number in numbers:
            member = candidates[number]
            if not chosen[number] and room.get(member, 0) > 0:
                chosen[number] = member
                room[member] -= 1
    waiting = (member for member in members for _ in range(room[member]))
    return [member or next(waiting) for member in chosen]
