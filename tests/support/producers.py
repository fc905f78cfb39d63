"""A shard on a forgetful disk, seen by producers: every answer is confirmed before it is told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.model import MessageId
from penstock.requests import LeaseRequest, PartitionChoice, Producer
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import run_operation

ME: Final = 7  # a producer
HOW: Final = ("restart", "power cut", "checkpoint", "seal")  # ways to stop; after all but the first the process is dead


class System:
    """See the module."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(1)
        self.open()

    def open(self) -> None:
        self.session = Session(
            None, clock=self.clock, rng=random.Random(1), disk=self.disk, background=False, journal_file_bytes=1 << 18
        )

    def reopen(self, how: str) -> None:
        if how == "restart":
            self.session.close()
        elif how == "checkpoint":
            self.session.checkpoint()
        elif how == "seal":
            run_operation(self.session, ops.Seal())
        self.disk = self.disk.crash() if how == "power cut" else self.disk.kill()
        self.open()

    def push(
        self,
        items: Sequence[object],
        producer: Producer | None,
        queue: str = "mail",
        partition: PartitionChoice = None,
    ) -> list[MessageId]:
        reply, ticket = self.session.shard.push(queue, Batch.build(items), partition, producer=producer)
        self.session.shard.confirm(ticket)
        return reply.ids()

    def fold(self, payloads: list[bytes], producers: list[Producer | None], queue: str = "mail") -> list[int]:
        (_, offsets), ticket = self.session.shard.push_folded(queue, payloads, producers)
        self.session.shard.confirm(ticket)
        return list(offsets)

    def lease(self) -> list[bytes]:
        reply, _ = self.session.lease("mail", "default", LeaseRequest(100))
        return [payload for piece in self.session.loaded(reply.pieces) for payload in piece.payloads()]
