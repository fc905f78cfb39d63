"""How the files are served: sizes, caching, compression and the policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx

from penstock.cli.serve import _say
from penstock.dashboard.files import NO_BANNER, Files
from tests.dashboard.conftest import sizes


def loaded_with(name: str, files: dict[str, Any], seen: set[str]) -> int:
    """Bytes of a script and of all that it imports at once, in brotli."""
    if name in seen:
        return 0
    seen.add(name)
    return int(files[name]["brotli"]) + sum(loaded_with(other, files, seen) for other in files[name]["imports"])


def test_the_pages_stay_within_their_budget(browser):
    files = sizes()
    main = next(name for name in files if name.startswith("main-"))
    style = next(size["brotli"] for name, size in files.items() if name.endswith(".css"))
    pages = {size["entry"]: name for name, size in files.items() if size["entry"] and "/pages/" in size["entry"]}

    def bytes_of(name: str) -> int:
        seen: set[str] = set()
        return int(style) + loaded_with(main, files, seen) + loaded_with(name, files, seen)

    assert bytes_of(pages["src/pages/overview.tsx"]) <= 45_000
    assert max(bytes_of(name) for name in pages.values()) <= 90_000
    assert sum(size["brotli"] for size in files.values()) <= 150_000


def test_scripts_are_compressed_and_kept_for_good_and_the_page_is_not(shop):
    with httpx.Client(base_url=shop.origin, timeout=60) as client:
        page = client.get("/ui/")
        script = page.text.split('type="module" src="')[1].split('"')[0]
        sent = client.get(f"/ui/{script}", headers={"accept-encoding": "br"})
        known = client.get(f"/ui/{script}", headers={"if-none-match": sent.headers["etag"]})
        missing = client.get("/ui/main-OLD.js")
        deep = client.get("/ui/queues/shop.orders.js/messages")

    assert page.headers["cache-control"] == "no-cache"
    assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]
    assert sent.headers["content-encoding"] == "br"
    assert "immutable" in sent.headers["cache-control"]
    assert sent.headers["content-type"].startswith("text/javascript")
    assert (known.status_code, known.content) == (304, b"")
    assert missing.status_code == 404
    assert (deep.status_code, deep.text) == (200, page.text)


def test_without_a_build_the_broker_says_how_to_get_one(tmp_path):
    reply = Files(tmp_path).reply("")
    assert reply.status == 503
    assert b"make setup" in reply.content


def test_a_broker_without_a_build_says_so_when_it_starts(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("penstock.dashboard.files.Files.__init__.__defaults__", (tmp_path, NO_BANNER))
    address = SimpleNamespace(protocol="http", url="http://127.0.0.1:7711")
    started = SimpleNamespace(role="", durability="fsync", data="d", queues=0, addresses=[address], header_file="")
    _say(started)
    assert "The dashboard is not built" in capsys.readouterr().out


def test_a_prefix_that_is_not_a_path_is_ignored(browser):
    page = Files().reply("", prefix='/x"><script>').content
    assert b'<base href="/ui/">' in page
