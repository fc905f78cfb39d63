"""What the arguments of every operation have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from penstock.model import check_name


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of an operation; a field that no operation has is refused.

    `check` is called by every client before it sends them, and by the broker after it has decoded them.
    """

    checked_names: ClassVar[Mapping[str, str]] = {
        "queue": "queue",
        "group": "group",
        "member": "member",
    }  # field: what it is

    def check(self) -> None:
        """Refuse what cannot be meant, naming the field."""
        for field, what in self.checked_names.items():
            if hasattr(self, field):
                check_name(getattr(self, field), what)


class OfQueue(Arguments):
    """Arguments whose `name` is that of a queue."""

    checked_names: ClassVar[Mapping[str, str]] = {"name": "queue"}
