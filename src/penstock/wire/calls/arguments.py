"""What the arguments of every operation have in common."""

from __future__ import annotations

import msgspec


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of an operation; a field that no operation has is refused."""
