"""Signing in with a browser: cookies, the secrets of tabs, other ports of the same machine, signing out."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import expect

from tests.browser.conftest import PASSWORD, call, own_page, sign_in

PUSH = "/queues/mail/messages"
ONE = {"messages": [{"payload": 1}]}


def test_a_user_signs_in_works_and_signs_out(profile, target):
    page = own_page(profile, target)
    assert call(page, "GET", "/me")[0] == 401

    tab = sign_in(page)

    assert call(page, "GET", "/me", headers=tab)[1]["name"] == "ann"
    assert call(page, "POST", PUSH, ONE, tab)[0] == 201
    assert call(page, "DELETE", "/sessions/current", headers=tab) == (204, None)
    assert profile.cookies() == []
    assert call(page, "GET", "/me", headers=tab)[0] == 401
    assert call(page, "POST", PUSH, ONE, tab)[0] == 401


def test_a_wrong_password_leaves_no_cookie(profile, target):
    page = own_page(profile, target)

    status, refused = call(page, "POST", "/sessions", {"user": "mallory", "password": PASSWORD + "!"})

    assert (status, refused["error"]["code"]) == (401, "not_authenticated")
    assert profile.cookies() == []


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(profile, target, tls):
    page = own_page(profile, target)
    sign_in(page)

    (cookie,) = profile.cookies()
    port = target.served.port("http")
    assert cookie.get("name") == ("__Host-penstock" if tls else f"penstock_{port}")
    assert (cookie.get("httpOnly"), cookie.get("sameSite"), cookie.get("secure")) == (True, "Strict", tls is not None)
    assert cookie.get("path") == "/"
    assert page.evaluate("document.cookie") == ""


def test_another_port_receives_the_cookie_and_cannot_use_it(profile, target, elsewhere, tls):
    tab = sign_in(own_page(profile, target))
    other = elsewhere()
    page = profile.new_page()
    page.goto(other.url("localhost"))
    cookie = other.seen[-1].cookie
    assert cookie  # browsers do not tell the ports of a host apart

    stolen = {"cookie": cookie}
    with httpx.Client(base_url=f"{target.origin}/api/v1", verify=False, timeout=60) as thief:
        if tls:
            # Over https whoever answers there has the certificate of this host: it is the host.
            assert thief.get("/me", headers=stolen).status_code == 200
        else:
            assert thief.get("/me", headers=stolen).status_code == 401
            assert thief.post(PUSH, json=ONE, headers=stolen).status_code == 401
            assert thief.get("/me", headers=stolen | tab).status_code == 200  # it is the tab's secret that it lacks
    assert page.evaluate("Object.keys(sessionStorage).length + document.cookie.length") == 0


def test_a_cookie_that_another_port_sets_signs_nobody_out_and_nobody_in(profile, target, elsewhere, browser):
    page = own_page(profile, target)
    tab = sign_in(page)
    foreign = browser.new_context(ignore_https_errors=True)
    sign_in(own_page(foreign, target), "mallory")
    (cookie,) = foreign.cookies()
    foreign.close()
    other = profile.new_page()
    other.goto(elsewhere().url("localhost"))

    other.evaluate("(text) => { document.cookie = text; }", f"{cookie['name']}={cookie['value']}; path=/api")
    other.evaluate("(text) => { document.cookie = text; }", f"{cookie['name']}=x; path=/api/v1")

    assert call(page, "GET", "/me", headers=tab)[1]["name"] == "ann"


def test_a_second_tab_needs_a_secret_of_its_own(profile, target, tls):
    first, second = own_page(profile, target), own_page(profile, target)
    tab = sign_in(first)

    assert call(second, "GET", "/me")[0] == (200 if tls else 401)
    other = sign_in(second)

    assert call(second, "GET", "/me", headers=other)[0] == 200
    # Over http they share a session, over https the second one has replaced the cookie of the first.
    assert call(first, "GET", "/me", headers=tab)[0] == 200


# The dashboard at /ui/.


def test_a_one_time_link_signs_a_browser_in_once_and_leaves_no_trace_in_the_address(profile, target, browser):
    link = target.origin + target.owner.post("/sessions/links").json()["path"]
    page = profile.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))

    page.goto(link)

    expect(page.locator(".who")).to_contain_text("owner")
    assert page.url == f"{target.origin}/ui/"
    assert errors == []
    page.reload()
    expect(page.locator(".who")).to_contain_text("owner")
    other = browser.new_context(ignore_https_errors=True)
    second = other.new_page()
    second.goto(link)
    # Or the page is not even asked: this broker has seen many failures by now.
    expect(second.locator("#message")).to_have_text(re.compile("has been used|too many failed sign-ins"))
    assert other.cookies() == []
    other.close()


def test_a_person_signs_in_with_a_password_and_out_again(profile, target):
    page = own_page(profile, target)
    page.fill("#user", "mallory")
    page.fill("#password", PASSWORD)
    page.get_by_role("button", name="Sign in").click()

    expect(page.locator(".who")).to_contain_text("mallory")
    expect(page.locator(".who span")).to_have_attribute("title", "monitor:*")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to Penstock")).to_be_visible()
    assert page.input_value("#password") == ""
    assert profile.cookies() == []
    assert page.evaluate("sessionStorage.length") == 0


SOCKET = """(first) => new Promise((done) => {
    const found = [];
    const socket = new WebSocket(location.origin.replace("http", "ws") + "/api/v1/stream");
    socket.onopen = () => {
        if (first) socket.send(JSON.stringify(first));
        socket.send('{"type":"push","id":2,"queue":"mail","messages":[{"payload":1}]}');
    };
    socket.onmessage = (event) => {
        const said = JSON.parse(event.data);
        found.push(said);
        if (said.id === 2) socket.close();
    };
    socket.onclose = () => done(found);
})"""


def test_a_websocket_belongs_to_the_session_of_its_tab(profile, target, tls):
    page = own_page(profile, target)
    tab = sign_in(page)
    secret = next(iter(tab.values()), "")

    def says(first: dict[str, object] | None) -> str:
        return str(page.evaluate(SOCKET, first)[-1]["type"])

    assert says(None if tls else {"type": "auth", "id": 1, "tab": secret}) != "error"
    if not tls:
        assert says(None) == "error"
        assert says({"type": "auth", "id": 1, "tab": "x" * 43}) == "error"
