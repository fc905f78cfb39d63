"""A pytest plugin, loaded automatically, with the fixture `penstock_app`.

    # pyproject.toml
    [tool.pytest.ini_options]
    penstock_app = "shop.tasks:app"

    def test_a_mail_is_sent(penstock_app):
        job = send.enqueue("a@b.c")
        penstock_app.run_pending()
        assert job.result() == 1

During the test, the tasks of the app are stored in memory, whatever its URL. Nothing runs before `run_pending()`, and
time moves only with `advance(seconds)`. Without the setting, the fixture is a new app, for tasks that the test
declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.tasks.local import LocalApp


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting that names the app."""
    parser.addini("penstock_app", "the import path of the app under test, such as shop.tasks:app", default="")


@pytest.fixture
def penstock_app(request: pytest.FixtureRequest) -> Iterator[LocalApp]:
    """The app under test, in memory, with `run_pending()` and `advance(seconds)`."""
    from penstock.tasks.app import App
    from penstock.worker.command import load_app

    path = request.config.getini("penstock_app")
    with load_app(path).testing() if path else App.in_memory() as app:
        yield app
