"""One S3 server for all tests of a process, and a bucket for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

from tests.support.s3 import CREDENTIALS, S3Server, s3_server

_NUMBERS = count()


class Place(NamedTuple):
    """A bucket with nothing in it."""

    server: S3Server
    bucket: str

    @property
    def url(self) -> str:
        return self.server.url(f"{self.bucket}/some/prefix")

    def objects(self) -> list[str]:
        return self.server.objects(f"{self.bucket}/some/prefix")


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(server: S3Server, credentials: None) -> Place:
    place = Place(server, f"bucket-{next(_NUMBERS)}")
    server.make_bucket(place.bucket)
    return place
