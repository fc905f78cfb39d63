"""Every block of code in the README and in docs/ is run as it is printed, or says why it is not."""

from __future__ import annotations

import pytest

from tests.support.doc_page import ROOT, blocks, check_syntax, is_code, run_page
from tests.test_spark_pages import SPARK_PAGES

DOCS = ROOT / "docs"

# Pages that a test of their subject runs, because it knows what they need.
RUN_BY = {
    "coming-from-celery.md": "tests/test_coming_from.py",
    "coming-from-dramatiq.md": "tests/test_coming_from.py",
    "coming-from-rq.md": "tests/test_coming_from.py",
    "grpc.md": "tests/test_protocol_docs.py",
    "security.md": "tests/test_security_docs.py",
    "tasks.md": "tests/tasks/test_app_docs.py",
    "websocket.md": "tests/test_protocol_docs.py",
}
WITH_CODE = [page for page in sorted(DOCS.rglob("*.md")) if any(map(is_code, blocks(page)))]
RUN_HERE = [page for page in WITH_CODE if page.name not in RUN_BY and page not in SPARK_PAGES]


def test_the_readme_works_as_typed_twice_in_one_terminal(tmp_path):
    run_page(ROOT / "README.md", tmp_path, times=2)


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_code_of_a_page_runs(page, tmp_path):
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_is_sound_and_gives_a_reason_if_it_is_not_run(page):
    found = [block for block in blocks(page) if is_code(block)]
    for block in found:
        check_syntax(block)

    assert [block for block in found if block.reason and len(block.reason) < 8] == []


@pytest.mark.parametrize("name", RUN_BY)
def test_a_page_that_is_run_elsewhere_is_named_there(name):
    assert name in (ROOT / RUN_BY[name]).read_text(encoding="utf-8")
