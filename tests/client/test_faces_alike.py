"""The two faces of the client have the same methods, with the same arguments and types; one is generated."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock.client import generate
from penstock.client._async import access as async_access
from penstock.client._async import bulk as async_bulk
from penstock.client._async import consumer as async_consumer
from penstock.client._async import delivery as async_delivery
from penstock.client._async import queue as async_queue
from penstock.client._sync import access, bulk, consumer, delivery, queue
from penstock.client.handles import AsyncPenstock, Penstock

PAIRS = {
    "Access": (access.Access, async_access.Access),
    "Audit": (access.Audit, async_access.Audit),
    "Penstock": (Penstock, AsyncPenstock),
    "Queue": (queue.Queue, async_queue.Queue),
    "DeadLetters": (bulk.DeadLetters, async_bulk.DeadLetters),
    "Operations": (bulk.Operations, async_bulk.Operations),
    "Delivery": (delivery.Delivery, async_delivery.Delivery),
    "Leased": (delivery.Leased, async_delivery.Leased),
    "Transaction": (queue.Transaction, async_queue.Transaction),
    "Subscription": (consumer.Subscription, async_consumer.Subscription),
}


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def plain(signature: inspect.Signature) -> str:
    """A signature without what must differ: events and generators of each face."""
    text = re.sub(r"AsyncGenerator\[(\w+)\]", r"Generator[\1, None, None]", str(signature))
    text = re.sub(r"Awaitable\[(\w+)\]", r"\1", text)  # what a stream runs to
    return re.sub(r"\bAsync(Session|Pipeline)\b", r"\1", text)


def test_the_blocking_face_is_what_the_asyncio_face_says():
    assert generate.stale(write=False) == [], "run `make generate`"


@pytest.mark.parametrize("name", PAIRS)
def test_both_faces_have_the_same_methods_and_types(name):
    blocking, asynchronous = PAIRS[name]

    assert public(blocking).keys() == public(asynchronous).keys()
    for method, value in public(blocking).items():
        other = public(asynchronous)[method]
        assert isinstance(value, property) == isinstance(other, property), method
        if inspect.isfunction(value) and inspect.isfunction(other):
            assert plain(inspect.signature(value)) == plain(inspect.signature(other)), method


@pytest.mark.parametrize("name", PAIRS)
def test_no_public_result_is_any(name):
    for kind in PAIRS[name]:
        for method, value in public(kind).items():
            if inspect.isfunction(value) and value.__module__.startswith("penstock.") and method != "json":
                assert inspect.signature(value).return_annotation not in ("Any", inspect.Signature.empty), method
