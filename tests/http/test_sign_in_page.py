"""The page at /ui/ in a real browser: a one-time link signs in, once; signing out ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.access.sessions import link_of
from tests.support.chromium import chromium
from tests.support.tls import TlsBroker


def new_link(running: TlsBroker) -> str:
    link: str = running.server.new_link(running.started)
    return link


def said(page: Any, text: str) -> None:
    page.wait_for_function("text => document.getElementById('message').textContent.includes(text)", arg=text)


def test_a_link_signs_a_browser_in_once_and_it_signs_out(tmp_path: Path):
    with TlsBroker(tmp_path, auth="on") as running, chromium() as browser:
        link = new_link(running)
        assert link.startswith(link_of(f"http://127.0.0.1:{running.port('http')}", ""))
        context = browser.new_context()
        page = context.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if "Policy" in message.text else None)

        page.goto(link)
        said(page, "Signed in as owner.")
        assert "code" not in page.url
        page.reload()
        said(page, "Signed in as owner.")

        other = context.new_page()  # has the cookie, not the secret of the tab
        other.goto(link)
        said(other, "the link was used already")
        assert other.is_visible("#sign-in")

        page.click("#reference")
        page.wait_for_selector("details")
        page.goto(link.partition("#")[0])
        said(page, "Signed in as owner.")
        page.click("#sign-out")
        said(page, "Nobody is signed in.")
        assert problems == []
