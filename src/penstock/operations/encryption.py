"""Operations on the data keys of encrypted queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.errors import InvalidField
from penstock.operations.base import Action, Operation, Repeat, operation
from penstock.operations.types import Instant, QueueName
from penstock.replies import DataKeyView, QueueKeys

IN_QUEUE: Final = ("queue_not_found", "invalid_field")


@operation(Action.READ)
class GetDataKeys(Operation[QueueKeys], frozen=True):
    """The data keys of a queue and of its dead letters, for readers of stored files: whoever may read may decrypt."""

    queue: QueueName


@operation(Action.MONITOR, http="GET /encryption", route="list_data_keys", reply="keys")
class ListDataKeys(Operation[list[DataKeyView]], frozen=True):
    """The data keys of all encrypted queues, without the keys themselves."""

    def queues(self) -> Iterable[str]:
        return ()

    def visible(self, reply: list[DataKeyView], may: Callable[[str], bool]) -> list[DataKeyView]:
        return [key for key in reply if may(key.queue)]


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/encryption/rotate",
    route="rotate_data_key",
    reply="key",
    repeat=Repeat.NEVER,
    errors=IN_QUEUE,
)
class RotateDataKey(Operation[str], frozen=True):
    """Encrypt with a new data key from now on; its id."""

    queue: QueueName


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/encryption/erase",
    route="erase_data_keys",
    reply="erased",
    repeat=Repeat.NEVER,
    errors=IN_QUEUE,
    example={"confirm": "orders"},
)
class EraseDataKeys(Operation[int], frozen=True):
    """Erase the data keys of a queue and of its dead letters: what they encrypted is lost for good; how many.

    `confirm` repeats the name of the queue. With `before`, keys that were followed by another by then.
    """

    queue: QueueName
    confirm: str
    before: Instant | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confirm != self.queue:
            raise InvalidField("confirm: repeat the name of the queue whose messages are to be lost")


@operation(
    Action.OPERATE,
    http="POST /encryption/rewrap",
    route="rewrap_data_keys",
    reply="rewrapped",
    repeat=Repeat.NEVER,
    errors=("invalid_field", "bad_settings"),
    example={"master_key": "/etc/penstock/new-master.key"},
)
class RewrapDataKeys(Operation[int], frozen=True):
    """Wrap all data keys with another master key, from a key file on the broker's machine; how many.

    No data is touched. The setting `master_key` must name the new file when the broker starts again.
    """

    master_key: str = msgspec.field()
