"""The wire: golden bytes, and every value comes back as it went."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock import operations as ops
from penstock.batch import Batch
from penstock.errors import BadRequest, Internal, PenstockError, RateLimited
from penstock.model import Message, MessageId, Receipt
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.wire import answers, frames, requests
from penstock.wire.errors import CLASSES, STATUS, ErrorReply, grpc_status, http_status, to_error, to_reply
from penstock.wire.frames import JsonType, Splitter, Type, frame

PAGE = (Path(__file__).parent.parent.parent / "docs/formats/tcp.md").read_text(encoding="utf-8")


def cut(data: bytes, step: int, splitter: Splitter) -> list[tuple[int, int, bytes]]:
    found = []
    for start in range(0, len(data), step):
        whole, cuts = splitter.feed(data[start : start + step])
        found += [(kind, correlation, whole[begin:end]) for kind, correlation, begin, end in cuts]
    return found


# frames


def test_the_first_exchange_of_the_page_is_what_is_sent():
    shown = [
        bytes.fromhex("".join(re.findall(r"\b[0-9a-f]{2}\b", line[2:71])))
        for line in PAGE.splitlines()
        if "→ 00" in line
    ]

    assert shown[0] == frame(Type.HELLO, 1, requests.encode(requests.Hello(2, "x")))
    assert frame(Type.PUSH_ONE, 2, requests.encode_push_one(b"mail", 0, b"hello")).startswith(shown[1][:20])
    assert answers.placed_frame(2, b"0", 0).hex(" ") == "00 00 00 0e 27 00 00 00 02 " + "00 " * 8 + "30"


def test_every_type_is_on_the_page():
    documented = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", PAGE, re.MULTILINE))

    assert documented == {str(kind.value): kind.name for kind in (*JsonType, *Type)}


def test_every_call_is_on_the_page_with_its_arguments():
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    shown = {name: re.sub(r" \[.*?\]+", "", arguments).split(", ") for name, arguments in rows.items()}

    declared: list[tuple[str, type[msgspec.Struct]]] = [*ops.TABLE.items(), ("transact", requests.Transact)]
    assert shown == {
        name: [field.name for field in msgspec.structs.fields(kind)] or ["none"] for name, kind in declared
    }


def test_a_stream_is_cut_into_the_same_frames_wherever_it_is_split():
    sent = [(17, 5, b"abc"), (18, 6, b""), (2, 0, b"{}"), (35, 2**32 - 1, bytes(300))]
    data = b"".join(
        frame(kind, correlation, body) if kind >= 16 else frames.LENGTH.pack(1 + len(body)) + bytes([kind]) + body
        for kind, correlation, body in sent
    )

    for step in range(1, len(data) + 1):
        assert cut(data, step, Splitter(1000)) == sent


def test_a_frame_over_the_limit_is_refused_by_its_length_alone():
    with pytest.raises(BadRequest, match="over the limit of 100"):
        Splitter(100).feed(frames.LENGTH.pack(101) + b"\x11")


def test_http_on_this_port_is_named():
    with pytest.raises(BadRequest, match="this is HTTP"):
        Splitter(1 << 25).feed(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(BadRequest, match="the server speaks HTTP"):
        Splitter(1 << 25).feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("data", [b"\0\0\0\0\x11", b"\0\0\0\4\x11", b"\0\0\0\0\1"])
def test_a_frame_too_short_for_its_head_is_refused(data):
    with pytest.raises(BadRequest, match="bytes long"):
        Splitter(100).feed(data)


@given(st.binary(max_size=200))
def test_whatever_comes_is_frames_or_a_bad_request(data):
    try:
        cut(data, 7, Splitter(64))
    except BadRequest:
        return


# bodies


@given(st.binary(max_size=64))
def test_no_body_breaks_a_decoder(data):
    view = memoryview(data)
    tries = [
        lambda: requests.decode_push_one(data, 0, len(data)),
        lambda: requests.decode_push(view),
        lambda: answers.decode_placed(view),
        lambda: answers.decode_leased(view),
        *(
            lambda kind=kind: requests.decode(view, kind)
            for kind in (
                requests.Hello,
                requests.Lease,
                requests.Settle,
                requests.Extend,
                requests.Call,
            )
        ),
    ]
    for each in tries:
        try:
            each()
        except (BadRequest, UnicodeDecodeError):
            continue


def test_a_push_of_one_comes_back():
    body = requests.encode_push_one(b"mail", 7, b"payload")

    assert requests.decode_push_one(b"xx" + body, 2, 2 + len(body)) == (7, b"mail", b"payload")


def test_the_head_of_a_push_comes_back_with_its_batch():
    head = requests.PushHead("mail", 3, "os", [None, 1, "north"])

    found, batch = requests.decode_push(memoryview(requests.encode_push(head) + b"batch"))

    assert found == head
    assert bytes(batch) == b"batch"


def test_a_push_reply_comes_back():
    reply = PushReply(
        "mail", 4, [("0", 2, 10, np.array([0, 2])), ("1", 1, 5, np.array([3]))], {1: MessageId("mail", "0", 3)}
    )

    found = answers.decode_pushed("mail", answers.encode_pushed(reply))

    assert found.ids() == reply.ids()
    assert found.duplicates == reply.duplicates


def settle_receipts() -> list[Receipt]:
    return [Receipt("mail", "0", 5, 1, 2**64 - 1), Receipt("mail", "north", 6, 3, 1)]


def test_receipts_come_back():
    settle = requests.Settle(1, receipts=settle_receipts())

    assert requests.decode(requests.encode(settle), requests.Settle) == settle


def leased(*pieces: Piece) -> LeaseReply:
    return LeaseReply("mail", "default", 2**64 - 1, 123, pieces, sum(len(piece.offsets) for piece in pieces))


def rows_of(reply: LeaseReply) -> list[tuple[object, ...]]:
    return [
        (piece.partition(i), offset, piece.attempt(i), piece.pushed(i), payload, piece.batch.key(piece.row(i)))
        for piece in reply.pieces
        for i, (offset, payload) in enumerate(zip(piece.offsets, piece.payloads(), strict=True))
    ]


def sent(reply: LeaseReply) -> LeaseReply:
    return answers.decode_leased(memoryview(b"".join(answers.encode_leased(reply))))


def batch_of(count: int, **options) -> Batch:
    return Batch.build([Message(payload=f"{i}".encode(), **options) for i in range(count)])


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (Piece(batch_of(10), slice(0, 10), "0", range(5, 15), 1, 99),),
        (Piece(batch_of(10), slice(3, 9), "0", range(5, 11), 2, 99),),
        (Piece(batch_of(100), slice(40, 42), "0", range(5, 7), 1, 99),),
        (Piece(batch_of(10, key="k"), np.array([1, 4, 9]), "0", [7, 9, 20], [1, 2, 3], [5, 6, 7]),),
        (Piece(batch_of(4), [0, 2], ["north", "south"], [1, 1], 1, 99),),
        (Piece(batch_of(3), slice(0, 3), ["0", "1", "2"], [3, 7, 5], 1, 99),),
        tuple(Piece(batch_of(1), slice(0, 1), str(i), range(n, n + 1), 1, 99) for i, n in enumerate((3, 7, 5))),
        tuple(Piece(batch_of(1), slice(0, 1), "0", range(i, i + 1), 1, 50 + i) for i in range(30)),
        tuple(Piece(batch_of(1, key="k"), slice(0, 1), "0", range(i, i + 1), i + 1, 50 + i) for i in range(3)),
    ],
)
def test_a_lease_comes_back(pieces):
    reply = leased(*pieces)

    found = sent(reply)

    assert rows_of(found) == rows_of(reply)
    assert (found.queue, found.group, found.nonce, found.expires_at, found.count) == (
        "mail", "default", 2**64 - 1, 123, reply.count,
    )  # fmt: skip


def test_a_whole_batch_travels_as_it_is_stored():
    batch = batch_of(10)

    body = answers.encode_leased(leased(Piece(batch, slice(0, 10), "0", range(10), 1, 99)))

    assert body[1] is batch.data


def test_few_rows_of_a_large_batch_travel_alone():
    body = answers.encode_leased(leased(Piece(batch_of(1000), slice(0, 10), "0", range(10), 1, 99)))

    assert len(b"".join(body)) < 300


def test_messages_pushed_one_by_one_travel_in_one_batch():
    pieces = [Piece(batch_of(1), slice(0, 1), "0", range(i, i + 1), 1, 99) for i in range(50)]

    assert len(sent(leased(*pieces)).pieces) == 1


@pytest.mark.parametrize("name", ops.TABLE)
def test_every_call_can_be_encoded_and_its_result_decoded(name):
    kind = ops.TABLE[name]

    assert kind.spec.name == name
    msgspec.msgpack.Decoder(kind)
    if kind is not ops.FinishTasks:  # errors travel as replies do
        msgspec.msgpack.Decoder(kind.spec.result)


def test_a_call_that_does_not_exist_is_refused():
    with pytest.raises(BadRequest, match="no operation 'nope'"):
        ops.named("nope")


# errors


def test_every_error_travels_and_comes_back_as_itself():
    for kind in CLASSES.values():
        back = to_error(msgspec.json.decode(msgspec.json.encode(to_reply(kind("why", hint="what"))), type=ErrorReply))
        assert (type(back), back.message, back.hint) == (kind, "why", "what")


def test_how_long_to_wait_travels_too():
    back = to_error(to_reply(RateLimited("slow down", retry_after_seconds=2.5)))

    assert isinstance(back, RateLimited)
    assert back.retry_after_seconds == 2.5


def test_an_error_of_a_newer_broker_is_an_error_all_the_same():
    assert isinstance(to_error(ErrorReply("brand_new", "what")), Internal)


def test_every_error_has_a_status():
    assert STATUS.keys() <= CLASSES.keys()
    for code in CLASSES:
        assert 400 <= http_status(code) < 600
        assert grpc_status(code).isupper()
    assert [http_status(code) for code in ("invalid_field", "lease_lost", "outcome_unknown", "disk_full")] == [
        400,
        409,
        503,
        507,
    ]


def test_every_class_of_error_has_a_code_of_its_own():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]

    assert len({kind.code for kind in kinds}) == len(kinds)
