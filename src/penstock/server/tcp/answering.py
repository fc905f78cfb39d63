"""Answers of one TCP connection: as frames, those of one turn of the event loop together."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from penstock.broker import Pending
from penstock.broker.tasks import Wait
from penstock.errors import PenstockError
from penstock.replies import LeaseReply, PushReply
from penstock.wire import answers, requests
from penstock.wire.errors import to_reply
from penstock.wire.frames import Type, frame, frame_head

if TYPE_CHECKING:
    from penstock.server.tcp.listener import TcpServer

WAITS_MAX: Final = 32_768  # of one connection that may wait for tasks without keeping it from being read


class Answering:
    """What a connection has under way, and what it says about it."""

    _transport: asyncio.Transport

    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._unanswered = 0
        self._held_bytes = 0
        self._is_reading = True
        self._is_lost = False
        self._pending: dict[int, Pending | Wait] = {}  # what waits, by the correlation of its request
        self._waits: dict[int, Wait] = {}  # the same of those that are not counted as unanswered
        self._out: list[bytes | memoryview] = []  # answers of this turn of the loop

    @abstractmethod
    def _set_reading(self) -> None: ...

    def _placed(self, correlation: int, held: int, answer: Any) -> None:
        self._held_bytes -= held
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            partition, offset = answer
            self._answer_with(answers.placed_frame(correlation, partition.encode(), offset))

    def _pushed(self, correlation: int, held: int, answer: PushReply | PenstockError) -> None:
        self._held_bytes -= held
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._answer(Type.PUSHED, correlation, answers.encode_pushed(answer))

    def _pushed_one(self, correlation: int, held: int, answer: Any) -> None:
        self._held_bytes -= held
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._answer(Type.PUSHED, correlation, answers.encode_pushed_one(*answer))

    def _leased(self, correlation: int, answer: LeaseReply | PenstockError) -> None:
        self._pending.pop(correlation, None)
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._unanswered -= 1
            self._send_leased(correlation, answer)
            if not self._is_reading:
                self._set_reading()

    def _send_leased(self, correlation: int, reply: LeaseReply) -> None:
        body = answers.encode_leased(reply)
        self._send(frame_head(Type.LEASED, correlation, sum(map(len, body))) + body[0], *body[1:])
        self.flush()  # so that the transport says when it is full

    def _told(self, correlation: int, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._answer(Type.OK, correlation, answers.encode_reply(answer))

    def _fail(self, correlation: int, error: PenstockError) -> None:
        self._answer(Type.ERROR, correlation, requests.encode(to_reply(error)))

    def _answer(self, kind: int, correlation: int, body: bytes = b"") -> None:
        self._answer_with(frame(kind, correlation, body))

    def _answer_with(self, answer: bytes) -> None:
        self._unanswered -= 1
        self._send(answer)
        if not self._is_reading:
            self._set_reading()

    def _send(self, *data: bytes | memoryview) -> None:
        """Answers of one turn of the loop leave together: one system call for all of them."""
        if not self._out and not self._is_lost:
            self._server.flush_soon(self)
        self._out += data

    def flush(self) -> None:
        """Let the answers of this turn leave."""
        out, self._out = self._out, []
        if out and not self._is_lost and not self._transport.is_closing():
            self._transport.writelines(out)

    def _watch(self, correlation: int, wait: Wait) -> None:
        """Somebody waits for the end of a task. Thousands may; all else must be read and answered meanwhile."""
        if len(self._waits) < WAITS_MAX:
            self._waits[correlation] = wait
            self._unanswered -= 1
        else:
            self._pending[correlation] = wait

    def _begun(self, correlation: int, answer: Any) -> None:
        if self._waits.pop(correlation, None) is not None:
            self._unanswered += 1
        else:
            self._pending.pop(correlation, None)
        self._told(correlation, answer)
