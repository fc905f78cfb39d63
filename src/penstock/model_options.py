"""What each queue option does, in one sentence: for the flags of the command line, OpenAPI and docs/options.md.

`QueueOptions` declares their types and defaults, `OPTION_RANGES` their ranges. The page begins each row with the
sentence from here, and adds the details.
"""

from __future__ import annotations

from typing import Final

_BURST: Final = "by default one second's worth."
OPTION_TEXTS: Final[dict[str, str]] = {
    "partitions": "The number of partitions, or named: a partition is created when a push first names it.",
    "ordering": "The order of delivery: none, one lease at a time per partition, or one message at a time per key.",
    "service": "How priorities share the work: strict serves the highest first, weighted gives each lane a share.",
    "starvation_seconds": "A priority lane that was passed over for this long is served out of turn; 0 turns this off.",
    "lease_seconds": "How long a consumer may hold a message, unless the lease specifies another time.",
    "max_attempts": "The number of deliveries before a message becomes a dead letter.",
    "backoff_base_seconds": "The pause before the second attempt.",
    "backoff_multiplier": "The factor by which the pause grows with each attempt.",
    "backoff_max_seconds": "The longest pause between two attempts.",
    "backoff_jitter": "Random variation of each pause, as a share of it.",
    "dead_letter": "Copy messages that ran out of attempts to the dead-letter queue; otherwise discard them.",
    "delay_seconds": "The shortest time from push to delivery.",
    "window_seconds": "Hold messages until their partition had no push for this long, then deliver them together.",
    "ttl_seconds": "Messages that are not settled after this time expire.",
    "max_wait_seconds": "Remove messages that have waited this long without a delivery.",
    "max_wait_action": "What happens to messages that have waited too long: dead-letter them or drop them.",
    "max_length": "The most unsettled messages that any group may have.",
    "overflow": "What a push to a full queue does: fail with queue_full, or drop the oldest messages.",
    "max_in_flight": "The most messages that one consumer may hold at a time.",
    "push_per_second": "The most messages pushed to the queue per second.",
    "push_burst": f"The most messages pushed to the queue at once; {_BURST}",
    "lease_per_second": "The most messages delivered to each group per second.",
    "lease_burst": f"The most messages delivered to each group at once; {_BURST}",
    "client_push_per_second": "The most messages pushed by each client per second.",
    "client_push_burst": f"The most messages pushed by each client at once; {_BURST}",
    "client_lease_per_second": "The most messages delivered to each client, in each group, per second.",
    "client_lease_burst": f"The most messages delivered to each client at once; {_BURST}",
    "key_push_per_second": "The most messages with the same key pushed per second.",
    "key_push_burst": f"The most messages with the same key pushed at once; {_BURST}",
    "key_lease_per_second": "The most messages with the same key delivered to each group per second.",
    "key_lease_burst": f"The most messages with the same key delivered at once; {_BURST}",
    "key_max_in_flight": "The most messages with the same key that the consumers of a group may hold at a time.",
    "dedup_seconds": "How long deduplication keys are remembered; 0 turns deduplication off.",
    "durability": "What a confirmed push survives: os a crash, fsync also a power cut, interval in between.",
    "retention_seconds": "How long settled messages stay readable.",
    "retention_bytes": "The oldest settled messages beyond this total size are removed.",
    "retention_messages": "The oldest settled messages beyond this number are removed.",
    "retention_messages_min": "The number of newest messages to keep, regardless of the other limits.",
    "retention_drops_unread": "Allow retention to remove messages that some group has not settled.",
    "retention_until_archived": "Keep every message until the group archive has passed it.",
    "compaction": "Keep all messages, or only the latest message of each key.",
    "compaction_ratio": "Compact when at least this share of the sealed messages can be removed.",
    "compaction_seconds": "The shortest time between two automatic compactions.",
    "compaction_drops_unread": "Allow compaction to remove messages that some group has not settled.",
    "tombstone_seconds": "How long a tombstone is kept after its push.",
    "group_expiry_seconds": "Remove groups that were not used for this long, except the group default.",
    "encryption": "Encrypt new messages on disk. This cannot be turned off again.",
    "masked_fields": "Paths into JSON payloads whose values are hidden from readers without the grant unmask.",
    "backoff": "Set the four backoff options to the values of another system.",
}
