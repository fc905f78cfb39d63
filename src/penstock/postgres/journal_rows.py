"""The rows of a journal in PostgreSQL: the statements that append and find one, and what their failures mean."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import DiskFull, StorageError, StoreRefused
from penstock.postgres.links import is_passing

UNIQUE: Final = "23505"

APPEND: Final = """
    WITH owner AS (SELECT 1 FROM penstock.shards WHERE shard = $1 AND term = $2 FOR SHARE)
    INSERT INTO {table} (position, sequence, end_sequence, term, data) SELECT $3, $4, $5, $2, $6 FROM owner"""
FIND: Final = "SELECT sequence, end_sequence, term, octet_length(data) FROM {table} WHERE position = $1"
END: Final = "SELECT end_sequence FROM {table} ORDER BY position DESC LIMIT 1"


class Row(NamedTuple):
    """What one commit stores."""

    position: int
    sequence: int
    end_sequence: int
    data: bytes


def may_be_stored(error: StorageError) -> bool:
    """Whether trying again will tell; anything else is a refusal that stays."""
    if isinstance(error, DiskFull):
        return True
    return is_passing(error) or (isinstance(error, StoreRefused) and error.sqlstate == UNIQUE)
