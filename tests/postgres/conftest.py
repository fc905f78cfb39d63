"""Fixtures of the tests on PostgreSQL: a store of its own for each test, and nodes that end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.nodes import NodeProcess, NodeThread
from tests.support.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def start_node(url, tmp_path) -> Iterator[Callable[..., NodeProcess]]:
    nodes: list[NodeProcess] = []

    def start(name: str, *flags: str, **environment: str) -> NodeProcess:
        nodes.append(NodeProcess(url, name, tmp_path, *flags, **environment))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def run_node(url, tmp_path) -> Iterator[Callable[..., NodeThread]]:
    nodes: list[NodeThread] = []

    def start(name: str, **settings: Any) -> NodeThread:
        nodes.append(NodeThread(url, name, tmp_path, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()
