"""A shard in PostgreSQL: the same bytes as on a disk, as rows, and every change fenced by the term of its owner."""
