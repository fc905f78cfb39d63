"""Whoever sends what: every field with a choice names its choices, and no error speaks in the words of a decoder.

These are tests of classes: of all types of requests, all operations and all routes, those of tomorrow too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import inspect

from penstock import errors, limits, refusals
from penstock import operations as ops
from penstock.errors import InputError, PenstockError
from penstock.model import Message, QueueOptions, queue_options
from penstock.refusals import number
from penstock.server.http.routes import ROUTES
from penstock.wire import json_models, json_protocols
from penstock.wire.json_reader import Reader
from tests.support.readable import check_readable

WRONG = "hgih"


def subclasses(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def requests() -> dict[str, Any]:
    """Every type that JSON from outside is decoded into: bodies and queries of HTTP, messages of WebSockets."""
    kinds = [kind for route in ROUTES for kind in (route.body, route.query) if kind is not None]
    kinds += [kind for module in (json_models, json_protocols) for kind in vars(module).values() if is_request(kind)]
    found: dict[str, Any] = {}
    for kind in kinds:
        for part in getattr(kind, "kinds", (kind,)):
            found.setdefault(getattr(part, "__name__", repr(part)), part)
    return found


def is_request(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, json_models.Request) and kind is not json_models.Request


REQUESTS = requests()


def places(kind: Any, build: Any = lambda value: value, seen: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Each leaf of a type, with what puts a value there."""
    if isinstance(kind, inspect.Metadata):
        yield from places(kind.type, build, seen)
    elif isinstance(kind, inspect.UnionType):
        inner = [part for part in kind.types if isinstance(part, inspect.StructType | inspect.ListType)]
        for part in inner:
            yield from places(part, build, seen)
        if not inner:
            yield kind, build
    elif isinstance(kind, inspect.ListType):
        yield from places(kind.item_type, lambda value: build([value]), seen)
    elif isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
        for field in kind.fields:
            yield from places(
                field.type,
                lambda value, name=field.encode_name, tag=tag: build({**tag, name: value}),
                (*seen, kind.cls),
            )
    else:
        yield kind, build


def refusal_of(kind: Any, document: Any) -> InputError | None:
    try:
        Reader(kind).read(msgspec.json.encode(document))
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_choice_in_json_names_its_words(name):
    for leaf, build in places(inspect.type_info(REQUESTS[name])):
        words = refusals._choices(leaf)
        # A union with plain text takes any word; what it means is checked later.
        if not words or refusal_of(REQUESTS[name], build(WRONG)) is None:
            continue
        refused = refusal_of(REQUESTS[name], build(WRONG))
        assert refused is not None
        assert all(word in refused.message for word in words), refused.message
        assert repr(WRONG) in refused.message


@pytest.mark.parametrize("name", sorted(REQUESTS))
@pytest.mark.parametrize("value", [WRONG, -1, 1e15, 0.0001, True, None, [], {}, {"a": 1}, "2030-01-01", "x" * 300, "{"])
def test_whatever_is_wrong_in_json_is_said_in_plain_words(name, value):
    for _, build in places(inspect.type_info(REQUESTS[name])):
        refused = refusal_of(REQUESTS[name], build(value))
        if refused is not None:
            check_readable(refused.message, refused.hint)


@pytest.mark.parametrize("name", sorted(REQUESTS))
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'"text"', b"null", b'{"frobnicate": 1}', b"\xff", b"[" * 5000]
)
def test_a_body_of_another_shape_is_said_in_plain_words(name, body):
    try:
        Reader(REQUESTS[name]).read(body)
    except InputError as error:
        check_readable(error.message, error.hint)


def choices_of(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Annotated:
        return choices_of(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return tuple(filter(None, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return tuple(hint)
    return ()


OPERATIONS = sorted(
    (kind for kind in subclasses(ops.Operation) if kind.__module__.startswith("penstock.operations")),
    key=lambda kind: str(kind.__name__),
)
CHOICES = [
    (kind, name, choices)
    for kind in OPERATIONS
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if name in getattr(kind, "__struct_fields__", ()) and (choices := choices_of(hint))
]


@pytest.mark.parametrize(("kind", "field", "choices"), CHOICES, ids=[f"{k.__name__}.{f}" for k, f, _ in CHOICES])
def test_a_choice_of_an_operation_names_its_words_over_every_protocol(kind, field, choices):
    """TCP and gRPC construct the operation as the SDK does, and it validates itself."""
    required = dict.fromkeys(kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)], "x")
    with pytest.raises(InputError) as refused:
        kind(**{**required, field: WRONG})

    assert all(word in refused.value.message + refused.value.hint for word in choices), str(refused.value)
    check_readable(refused.value.message, refused.value.hint)


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(QueueOptions)])
@pytest.mark.parametrize("value", [WRONG, -1.0, 1e15, True, {}, [1], 2**70, b"x"])
def test_a_queue_option_that_is_wrong_is_said_in_plain_words(name, value):
    refused = refusal_of_option(name, value)
    if refused is None:
        return
    check_readable(refused.message, refused.hint)
    assert name in refused.message
    kind = next(field.type for field in msgspec.structs.fields(QueueOptions) if field.name == name)
    if get_origin(kind) is Literal and isinstance(value, str):
        assert all(word in refused.message for word in get_args(kind))


def refusal_of_option(name: str, value: Any) -> InputError | None:
    try:
        queue_options({name: value})
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize(
    "options",
    [
        {"priority": WRONG}, {"priority": -1}, {"priority": 1e9}, {"delay": -1}, {"delay": 1e15}, {"ttl": 0},
        {"ttl": "soon"}, {"deliver_at": "soon"}, {"headers": {"a": 1}}, {"headers": 1}, {"key": 1}, {"partition": -1},
        {"max_attempts": 0}, {"max_attempts": 1.5}, {"trace": 5}, {"dedup_key": 5}, {"content_type": "xml"},
    ],
    ids=repr,
)  # fmt: skip
def test_a_message_that_is_wrong_is_said_in_plain_words(options, queue):
    with pytest.raises(PenstockError) as refused:
        queue.push_many([Message(payload=b"x", **options)])

    check_readable(refused.value.message, refused.value.hint)
    assert next(iter(options)) in refused.value.message


@pytest.fixture
def queue():
    import penstock

    with penstock.open_in_memory() as ps:
        yield ps.queue("mail")


def test_a_field_at_the_wrong_level_is_shown_where_it_belongs():
    push = Reader(json_models.Push)
    with pytest.raises(InputError) as refused:
        push.read(b'{"payload": 1}')

    assert refused.value.message == "payload: there is no such field"
    assert refused.value.hint == """'payload' belongs in 'messages': {"messages": [{"payload": …}]}"""


def test_what_is_not_json_gets_an_example_of_what_would_be():
    with pytest.raises(InputError) as refused:
        Reader(json_models.Push).read(b"hello")

    assert refused.value.hint == 'send JSON, such as {"messages": [{"payload": …}]}'


def test_secrets_are_not_repeated():
    class Login(json_models.Request):
        password: str = ""

    refused = refusal_of(Login, {"password": 123456})

    assert refused is not None
    assert refused.message == "password: it must be text"


def test_numbers_are_written_as_people_write_them():
    assert number(limits.delay_seconds_max) == "3,162,240,000"
    assert number(0.001) == "0.001"
    assert number(1e-6) == "0.000001"
    assert number(2.5) == "2.5"


def test_no_hint_fits_every_error():
    """A default hint belongs to one kind of error, or says nothing."""
    hints = [kind.hint_default for kind in subclasses(PenstockError) if "hint_default" in vars(kind)]

    assert len(set(hints)) == len(hints)
    for hint in hints:
        check_readable(hint)
    assert errors.InvalidField("x").hint == errors.BadRequest("x").hint == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1)"), "connection refused"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: no such file or directory"),
        (TimeoutError(), "TimeoutError"),
        (PermissionError(13, "Permission denied"), "permission denied"),
    ],
)
def test_an_error_of_the_system_is_said_without_its_number(error, words):
    assert errors.reason(error) == words
