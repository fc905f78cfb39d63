"""The files of the dashboard, ready to be sent.

They are built from `web/` into `static/` when the package is installed from a clone, and are part of the wheel. The
page itself is `index.html`; every other name has a hash of its content, so browsers may keep it for good. An address
that is not a file is a view of the page: the script reads the path.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
from html import escape
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

STATIC: Final = Path(__file__).parent / "static"
PAGE: Final = "index.html"
# Scripts and styles come from the broker alone, nothing is inline, and no text becomes a script.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "frame-src 'self'; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types penstock"
)
_PAGE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_HASHED: Final = re.compile(r"-[0-9A-Z]{8}\.(js|css)$")
_ENCODINGS: Final = (("br", ".br"), ("gzip", ".gz"))
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_BASE: Final = b'<base href="/ui/">'
_BANNER: Final = b'<meta name="penstock-banner" content="">'

NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock</title></head><body>
<h1>Penstock</h1>
<p>The dashboard is not part of this installation: it was installed from a clone on a machine without Node.</p>
<p>Install Node 20 or newer and run <code>make setup</code> again. The API is at <a href="../docs">/docs</a>.</p>
</body></html>
"""


class Banner(NamedTuple):
    """What the page says about the broker that it shows, so that nobody purges the wrong one."""

    environment: str = ""
    color: str = ""
    is_read_only: bool = False

    @property
    def tag(self) -> bytes:
        """The element of the page that says it."""
        words = (self.color or "gray", "read-only" if self.is_read_only else "", self.environment)
        return f'<meta name="penstock-banner" content="{escape("|".join(words))}">'.encode()


NO_BANNER: Final = Banner()


class Reply(NamedTuple):
    """What is sent for a request below /ui/."""

    status: int
    content: bytes
    headers: dict[str, str]


class Files:
    """The built files in memory. They are read again when the build has changed, which happens in development only."""

    def __init__(self, folder: Path = STATIC, banner: Banner = NO_BANNER) -> None:
        self._folder = folder
        self._banner = banner
        self._built_at: int | None = None
        self._files: dict[str, bytes] = {}

    @property
    def is_built(self) -> bool:
        """Whether there is a dashboard to serve."""
        self._refresh()
        return PAGE in self._files

    def reply(self, path: str, accepted: str = "", known: str = "", prefix: str = "") -> Reply:
        """The answer to a GET of `path` below /ui/. `accepted`, `known`: the headers Accept-Encoding, If-None-Match."""
        self._refresh()
        if PAGE not in self._files:
            return Reply(503, NOT_BUILT.encode(), _PAGE_HEADERS | {"content-type": "text/html; charset=utf-8"})
        if path in self._files and path != PAGE:
            return self._file(path, accepted, known)
        if ".." in unquote(path).split("/"):
            return Reply(404, b"there is no such page\n", {"content-type": "text/plain"})
        if "/" not in path and path.endswith((".js", ".css", ".svg", ".map", ".br", ".gz", ".json")):
            return Reply(404, b"there is no such file in this version\n", {"content-type": "text/plain"})
        return self._page(accepted, prefix)

    def _file(self, name: str, accepted: str, known: str) -> Reply:
        content, headers = self._files[name], {"content-type": _media(name), "vary": "accept-encoding"}
        headers["etag"] = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        is_final = _HASHED.search(name) is not None
        headers["cache-control"] = "public, max-age=31536000, immutable" if is_final else "no-cache"
        if known == headers["etag"]:
            return Reply(304, b"", headers)
        for encoding, ending in _ENCODINGS:
            if encoding in accepted and name + ending in self._files:
                return Reply(200, self._files[name + ending], headers | {"content-encoding": encoding})
        return Reply(200, content, headers)

    def _page(self, accepted: str, prefix: str) -> Reply:
        headers = _PAGE_HEADERS | {"content-type": "text/html; charset=utf-8"}
        content = self._files[PAGE].replace(_BANNER, self._banner.tag)
        if prefix and _PREFIX.fullmatch(prefix):
            content = content.replace(_BASE, f'<base href="{escape(prefix)}/ui/">'.encode())
        return Reply(200, content, headers)

    def _refresh(self) -> None:
        try:
            built_at = (self._folder / PAGE).stat().st_mtime_ns
        except FileNotFoundError:
            built_at = None
        if built_at != self._built_at:
            paths = list(self._folder.iterdir()) if built_at is not None else []
            self._files = {path.name: path.read_bytes() for path in paths}
            self._built_at = built_at


def _media(name: str) -> str:
    # Not from the tables of the machine: a wrong type there would make browsers refuse the script.
    known = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    media = known.get(Path(name).suffix) or mimetypes.types_map.get(Path(name).suffix, "application/octet-stream")
    return f"{media}; charset=utf-8" if media.startswith("text/") else media
