"""Mistakes of people who come from Celery, RabbitMQ or Kafka: the error says what to do instead."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.errors import Closed, DirectoryInUse, InvalidField, NotADataDirectory, Unavailable
from tests.support.http import HttpThread


def closed_queue(folder: Path) -> penstock.Queue:
    with penstock.open(folder / "closed") as ps:
        return ps.queue("mail")


def pickled(folder: Path, handle: Callable[[penstock.Penstock], object]) -> bytes:
    with penstock.open(folder / "data") as ps:
        return pickle.dumps(handle(ps))


def opened_twice(folder: Path) -> None:
    with penstock.open(folder / "data"):
        penstock.open(folder / "data")


def opened_file(folder: Path) -> None:
    (folder / "file").write_text("x")
    penstock.open(folder / "file")


def pushed_object(folder: Path) -> None:
    with penstock.open(folder / "data") as ps:
        ps.queue("mail").push(object())


def tcp_to_http_port(folder: Path) -> None:
    server = HttpThread()
    try:
        penstock.connect(f"penstock://127.0.0.1:{server.port}", connect_seconds=0.2)
    finally:
        server.stop()


MISTAKES: list[tuple[str, Callable[[Path], object], type[Exception], str]] = [
    ("the URL of RabbitMQ", lambda _: penstock.connect("amqp://guest@localhost//"), InvalidField, "penstock://localhost"),
    ("the URL of Redis", lambda _: penstock.connect("redis://localhost:6379/0"), InvalidField, "penstock://localhost"),
    ("a directory to connect to", lambda _: penstock.connect("./data"), InvalidField, "penstock.open('./data')"),
    ("a URL to open", lambda _: penstock.open("http://localhost:7711"), InvalidField, "penstock.connect("),
    ("TCP to the HTTP port", tcp_to_http_port, Unavailable, "use an http:// URL"),
    ("a payload that is not JSON", pushed_object, InvalidField, "bytes, text, or a JSON value"),
    ("a closed handle", lambda folder: closed_queue(folder).push("x"), Closed, "open it again"),
    ("a pickled Penstock", lambda folder: pickled(folder, lambda ps: ps), TypeError, "open Penstock there"),
    ("a pickled queue", lambda folder: pickled(folder, lambda ps: ps.queue("a")), TypeError, "open Penstock there"),
    ("one directory opened twice", opened_twice, DirectoryInUse, "close the other handle first"),
    ("a file as the directory", opened_file, NotADataDirectory, "use a new or empty directory"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "advice"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_answered_with_what_to_do(make, error, advice, tmp_path):
    with pytest.raises(error) as raised:
        make(tmp_path)

    assert advice in str(raised.value)
