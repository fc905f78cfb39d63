"""A server for each test, and one with other settings for those that ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.http import HttpThread


@pytest.fixture
def serve() -> Iterator[Callable[..., HttpThread]]:
    """Start a server with settings of the test's own."""
    with ExitStack() as stack:

        def start(**settings: Any) -> HttpThread:
            server = HttpThread(**settings)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def server(serve: Callable[..., HttpThread]) -> HttpThread:
    return serve()
