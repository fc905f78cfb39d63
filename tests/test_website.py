"""The website is built strictly, as `make docs` does: every link leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.support.doc_page import ROOT

# What a browser fetches by itself when it shows a page.
ASSET = re.compile(r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b([^>]*)>")
FETCHED = re.compile(r"\brel=[\"']?(?:stylesheet|icon|preload|prefetch|preconnect|dns-prefetch|manifest)")
HREF = re.compile(r"\bhref=[\"']?([^\"'\s>]+)")
IN_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)")

# Names with a page of their own, or that appear in signatures only.
EXPLAINED_ELSEWHERE = {
    *("__version__", "aio", "BaseDelivery", "Batch", "ContentType", "Measurement", "Observer", "Receipt"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("website")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def assets(html: str) -> list[str]:
    found = []
    for source, link in ASSET.findall(html):
        if source:
            found.append(source)
        elif FETCHED.search(link):
            found += HREF.findall(link)
    return found


def test_every_page_is_built(site):
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    expected = [page.with_name("index.html" if page.name == "README.md" else f"{page.stem}.html") for page in pages]

    assert [page for page in expected if not (site / page).is_file()] == []


def test_no_page_loads_anything_from_another_origin(site):
    pages = list(site.rglob("*.html"))
    loaded = {asset for page in pages for asset in assets(page.read_text(encoding="utf-8"))}
    styles = {url for style in site.rglob("*.css") for url in IN_STYLE.findall(style.read_text(encoding="utf-8"))}

    assert len(pages) > 80
    assert any(asset.endswith(".js") for asset in loaded)
    assert any(asset.endswith(".css") for asset in loaded)
    assert [asset for asset in loaded if re.match(r"(\w+:)?//", asset)] == []
    assert styles == set()


def test_a_foreign_asset_would_be_found():
    page = '<script src="https://cdn.example/x.js"></script><link rel="stylesheet" href="//fonts.example/x.css">'

    assert assets(page) == ["https://cdn.example/x.js", "//fonts.example/x.css"]


def test_every_public_name_is_in_the_reference(site):
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h3 id="[\w.]*?(\w+)" class="doc', page))

    assert {name for name in penstock.__all__ if name not in described} == EXPLAINED_ELSEWHERE
