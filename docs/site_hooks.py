"""What the website needs beyond docs/: the pages at the root of the repository, and the files that pages link to.

Links are written for readers of the repository. A link that leaves docs/ leads to a copy of the file within the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parent.parent
ROOT_PAGES: Final = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
LINK: Final = re.compile(r"\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every decision in the navigation."""
    pages = sorted(page.name for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    (section,) = (part for part in config.nav or [] if "How it works" in part)
    (decisions,) = (part["Decisions"] for part in section["How it works"] if "Decisions" in part)
    decisions += [f"decisions/{name}" for name in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and every file outside docs/ that some page links to."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    pages = [file.src_uri for file in files if file.src_uri.endswith(".md")]
    for path in sorted({path for page in pages for path in _linked(page)} - set(ROOT_PAGES)):
        files.append(File.generated(config, f"files/{path}.txt", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages and copies within the site."""
    source = page.file.src_uri

    def replace(link: re.Match[str]) -> str:
        inside = _inside(source, link["target"])
        if not inside:
            return link[0]
        return f"]({posixpath.relpath(inside, posixpath.dirname(source) or '.')}{link['anchor'] or ''})"

    return LINK.sub(replace, markdown)


def _inside(page: str, target: str) -> str:
    """Where a target of a page is within the site, if its link has to change."""
    path = _path(page, target)
    if page in ROOT_PAGES and path.startswith("docs/"):
        return f"{path.removeprefix('docs/')}/README.md" if (ROOT / path).is_dir() else path.removeprefix("docs/")
    if path.startswith("docs/") or not (ROOT / path).is_file():
        return ""
    return path if path in ROOT_PAGES else f"files/{path}.txt"


def _path(page: str, target: str) -> str:
    """The path of a link's target, from the root of the repository."""
    folder = "" if page in ROOT_PAGES else "docs"
    return posixpath.normpath(posixpath.join(folder, posixpath.dirname(page), target))


def _linked(page: str) -> list[str]:
    """The files outside docs/ that a page links to."""
    text = (ROOT / ("" if page in ROOT_PAGES else "docs") / page).read_text(encoding="utf-8")
    paths = [_path(page, target) for target, _ in LINK.findall(text)]
    return [path for path in paths if not path.startswith("docs/") and (ROOT / path).is_file()]
