"""The pages for those who come from elsewhere: what they say of Penstock is tried."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest

from tests.test_docs import python_blocks, text_of

PAGES = ["docs/coming-from-celery.md", "docs/coming-from-rq.md", "docs/coming-from-dramatiq.md"]
AT_A_BROKER = re.compile(r'penstock\.App\("penstock://localhost:7710"(?:, )?')


@pytest.mark.parametrize("page", PAGES)
def test_their_examples_run_to_the_end(page):
    for block in python_blocks(page):
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(AT_A_BROKER.sub("penstock.App.in_memory(", block), names)
            app = names["app"]
            app.run_pending()
            app.advance(3600)
            app.run_pending()
        assert {job.status() for job in app.jobs()} == ({"completed"} if app.tasks else set())


@pytest.mark.parametrize("page", PAGES)
def test_the_flags_and_options_that_they_name_are_there(page):
    known = text_of("docs/tasks.md") + text_of("docs/options.md") + text_of("docs/cli.md") + text_of("docs/tutorial.md")
    known += text_of("docs/configuration.md")
    rows = [line.rsplit("|", maxsplit=2)[1] for line in text_of(page).splitlines() if line.startswith("|")]
    codes = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    words = {word for code in codes for word in re.findall(r"\b[a-z]+_[a-z_]+\b", code)}

    assert {word for word in words if word not in known} == set()
