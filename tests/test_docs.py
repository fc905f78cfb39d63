"""The documentation is held to the code: what exists is described, what is described exists.

Tables in docs/ have the name in backticks in their first column; that is all these tests ask of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from penstock import errors, limits
from penstock.model import Outcome, QueueOptions
from penstock.model_options import OPTION_TEXTS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(name: str) -> dict[str, list[str]]:
    """Rows of all tables on a page whose first cell is a name in backticks: name → the other cells."""
    found = {}
    for line in text_of(name).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        first = re.fullmatch(r"`([^`]+)`", cells[0])
        if line.startswith("|") and first:
            found[first[1]] = cells[1:]
    return found


def subclasses(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in subclasses(child))]


def as_written(value: object) -> str:
    """A default as the page shows it."""
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def python_blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(name), re.MULTILINE | re.DOTALL)


def test_every_queue_option_is_documented_with_its_default():
    documented = {name: cells[0] for name, cells in rows("docs/options.md").items()}
    actual = {field.name: as_written(field.default) for field in msgspec.structs.fields(QueueOptions)}

    assert documented == actual


def test_every_queue_option_is_explained_once_and_its_row_begins_with_that_sentence():
    explained = {name: re.sub(r'[`"]', "", cells[1]) for name, cells in rows("docs/options.md").items()}

    assert set(OPTION_TEXTS) == {*explained, "backoff"}
    assert [name for name, text in explained.items() if not text.startswith(OPTION_TEXTS[name])] == []


def test_every_error_is_documented_under_its_code():
    page = text_of("docs/errors.md")
    documented = {code: cells[0] for code, cells in rows("docs/errors.md").items()}
    leaves = {kind.code: f"`{kind.__name__}`" for kind in subclasses(errors.PenstockError) if not kind.__subclasses__()}
    branches = [kind for kind in subclasses(errors.PenstockError) if kind.__subclasses__()]

    assert documented == leaves
    assert [kind for kind in branches if f"`{kind.__name__}`" not in page or f"`{kind.code}`" not in page] == []


def test_error_codes_are_unique_and_the_picture_shows_each():
    kinds = subclasses(errors.PenstockError)
    picture = errors.__doc__ or ""

    assert len({kind.code for kind in kinds}) == len(kinds)
    assert [kind for kind in kinds if kind.__name__ not in picture] == []


def test_every_outcome_is_in_the_glossary():
    assert set(rows("docs/glossary.md")) == {outcome.name.lower() for outcome in Outcome}


def test_documented_sizes_are_the_limits():
    page = text_of("docs/errors.md")
    guard = (limits.disk_free_share, limits.disk_free_bytes_floor, limits.disk_free_bytes_cap)

    assert guard == (0.05, 100 * limits.MIB, 5 * limits.GIB)
    assert "5 % of the disk, but at least 100 MiB and at most 5 GiB" in page
    assert f"A payload over {limits.payload_bytes_max // limits.MIB} MiB" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_decisions_are_numbered_without_gaps_and_listed():
    index = text_of("docs/decisions/README.md")

    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert [page.name for page in DECISIONS if f"({page.name})" not in index] == []


def test_every_dependency_says_why_it_is_there():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["grpc"]]
    names = {re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in requirements}
    pages = text_of("docs/decisions/0004-dependencies.md") + text_of("docs/decisions/0018-libraries.md")

    assert {name for name in names if f"**{name}**" not in pages} == set()


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_context_decision_and_consequences(page):
    text = page.read_text(encoding="utf-8")

    assert re.match(rf"# {page.name[:4]}: \S", text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_every_guarantee_names_tests_that_exist():
    page = text_of("docs/contributing/guarantees.md")
    promises = re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE)
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promise) for promise in promises]
    on_page = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [f"{path}::{test}" for path, test in on_page if not has_test(path, test)]

    assert len(promises) >= 10
    assert [promise for promise, tests in zip(promises, named, strict=True) if not tests] == []
    assert missing == []


def has_test(path: str, name: str) -> bool:
    return (ROOT / path).is_file() and re.search(
        rf"^((async def|def|class) {name}\b|{name} = )", text_of(path), re.MULTILINE
    ) is not None


def test_every_make_target_is_explained():
    makefile = text_of("Makefile")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)

    assert targets is not None
    assert explained == targets[1].split()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_what_everybody_reads_stays_short(name):
    assert len(text_of(name).splitlines()) < 150


def test_importing_penstock_does_not_load_the_command_line():
    script = "import sys, penstock; print(*sorted({'typer', 'rich', 'click'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.split() == []


def test_every_promise_of_the_five_designs_names_tests_that_exist():
    rows = re.findall(r"^\| .* \|$", text_of("docs/designs.md"), re.MULTILINE)
    promises = [row for row in rows if not row.startswith(("|---", "| section "))]
    without = [row for row in promises if "`tests/" not in row.rsplit("|", 2)[1]]
    named = {path for row in promises for path in re.findall(r"`(tests/[\w/]+\.py)`", row)}

    assert len(promises) > 80
    assert without == []
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
