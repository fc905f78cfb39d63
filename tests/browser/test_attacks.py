"""What a page of somebody else tries in the browser of a person who has signed in, or has not."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from penstock.server.http.routes import ROUTES
from tests.browser.conftest import CANARY, Target, call, dumped, own_page, sign_in, unharmed
from tests.support.chromium import EVIL, REBOUND, Elsewhere

# Each is an async function of the broker's origin; it returns whatever it could read.
ATTACKS = {
    "beacon": """async (target) => {
        const body = '{"messages":[{"payload":1}]}';
        const url = target + "/api/v1/queues/vault/messages";
        for (const type of ["text/plain", "application/json"]) navigator.sendBeacon(url, new Blob([body], {type}));
        // The queue of beacons has been sent when a request behind them is answered.
        await fetch(target + "/api/v1/queues/vault/purge", {method: "POST", mode: "no-cors", credentials: "include"});
    }""",
    "form": """async (target) => {
        const types = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
        for (const type of types) {
            const frame = document.createElement("iframe");
            frame.name = "frame" + Math.random();
            document.body.appendChild(frame);
            const form = document.body.appendChild(document.createElement("form"));
            Object.assign(form, {method: "POST", enctype: type, target: frame.name,
                                 action: target + "/api/v1/queues/vault/messages"});
            const input = form.appendChild(document.createElement("input"));
            input.name = '{"messages":[{"payload":"';
            input.value = '"}]}';
            const loaded = new Promise((done) => frame.onload = done);
            form.submit();
            await loaded;
        }
    }""",
    "fetch without cors": """async (target) => {
        const found = [];
        for (const credentials of ["omit", "include"]) {
            const response = await fetch(target + "/api/v1/queues/vault/messages", {
                method: "POST", mode: "no-cors", credentials, body: '{"messages":[{"payload":1}]}'});
            found.push(await response.text());
        }
        return found.filter((text) => text);
    }""",
    "fetch with cors": """async (target) => {
        const found = [];
        for (const credentials of ["omit", "include"]) {
            for (const headers of [{}, {"Content-Type": "application/json"}, {"X-Penstock-Tab": "x"},
                                   {"Authorization": "Bearer x"}]) {
                for (const [method, path, body] of [
                    ["GET", "/queues/vault/peek"],
                    ["POST", "/queues/vault/lease", "{}"],
                    ["POST", "/queues/vault/messages", '{"messages":[{"payload":1}]}'],
                    ["DELETE", "/queues/vault"],
                ]) {
                    await fetch(target + "/api/v1" + path, {method, headers, body, credentials})
                        .then((response) => response.text()).then((text) => found.push(text), () => 0);
                }
            }
        }
        return found;
    }""",
    "websocket": """(target) => new Promise((done) => {
        const found = [];
        const socket = new WebSocket(target.replace("http", "ws") + "/api/v1/stream");
        socket.onopen = () => {
            found.push("open");
            socket.send('{"type":"push","id":1,"queue":"vault","messages":[{"payload":1}]}');
        };
        socket.onmessage = (event) => found.push(event.data);
        socket.onclose = () => done(found);
    })""",
    "elements": """async (target) => {
        const found = [];
        const waits = [];
        window.onerror = (message) => { found.push(message); };
        for (const [tag, attribute] of [["object", "data"], ["embed", "src"], ["img", "src"], ["script", "src"],
                                        ["iframe", "src"]]) {
            for (const path of ["/api/v1/queues/vault/peek", "/api/v1/queues", "/metrics", "/openapi.json"]) {
                const element = document.createElement(tag);
                if (tag === "img" || tag === "script") {
                    waits.push(new Promise((done) => {
                        element.onload = () => { found.push(tag + " loaded " + path); done(); };
                        element.onerror = done;
                    }));
                } else if (tag === "iframe") {
                    waits.push(new Promise((done) => { element.onload = done; }));
                }
                element[attribute] = target + path;
                document.body.appendChild(element);
            }
        }
        await Promise.all(waits);
        for (const element of document.querySelectorAll("object, embed, iframe")) {
            try { found.push(element.contentDocument.body.innerText); } catch { /* of another origin */ }
        }
        return found.filter((text) => text);
    }""",
    "frame of no origin": """async (target) => {
        const frame = document.createElement("iframe");
        frame.sandbox = "allow-scripts allow-forms";
        const said = new Promise((done) => window.onmessage = (event) => done(event.data));
        frame.srcdoc = `<script>(async () => {
            const url = "${target}/api/v1/queues/vault/";
            const found = [];
            await fetch(url + "messages", {method: "POST", mode: "no-cors", credentials: "include",
                                           body: '{"messages":[{"payload":1}]}'}).catch(() => 0);
            await fetch(url + "peek", {credentials: "include"}).then((response) => response.text())
                .then((text) => found.push(text), () => 0);
            parent.postMessage(found, "*");
        })()</` + "script>";
        document.body.appendChild(frame);
        return await said;
    }""",
}
QUIET_ATTACKS = ("form", "fetch without cors")  # whose origin is `null` on a page without a referrer
FROM = {"another site": EVIL, "another port": "localhost", "an address": "127.0.0.1"}


@pytest.fixture(params=["signed in", "a stranger"])
def visited(request: pytest.FixtureRequest, profile: BrowserContext, target: Target) -> BrowserContext:
    """A browser that goes to pages of somebody else."""
    if request.param == "signed in":
        page = own_page(profile, target)
        tab = sign_in(page)
        assert call(page, "GET", "/me", headers=tab)[1]["name"] == "ann"
    return profile


@pytest.mark.parametrize("place", FROM)
def test_a_page_of_another_origin_reads_and_changes_nothing(visited, target, elsewhere, place):
    page = visited.new_page()
    url = elsewhere().url(FROM[place])

    with unharmed(target, visited):
        page.goto(url)
        found = {name: page.evaluate(attack, target.origin) for name, attack in ATTACKS.items()}
        page.goto(f"{url}/quiet")
        found |= {f"{name}, quietly": page.evaluate(ATTACKS[name], target.origin) for name in QUIET_ATTACKS}

    assert {name: text for name, text in found.items() if text} == {}


@pytest.mark.parametrize("attack", ATTACKS)
def test_these_attacks_arrive_at_a_server_that_does_not_defend_itself(profile, target, elsewhere, attack):
    server: Elsewhere = elsewhere()
    profile.add_cookies([{"name": "session", "value": "x", "url": server.url("localhost"), "sameSite": "Strict"}])
    page = profile.new_page()
    page.goto(elsewhere().url("localhost"))
    server.seen.clear()

    page.evaluate(ATTACKS[attack], server.url("localhost"))

    cookies = [request.cookie for request in server.seen]
    assert cookies
    assert ("session=x" in cookies) is (attack != "frame of no origin")  # which is another site, whatever is around it


# Every route.

PARAMETERS = {"queue": "vault", "group": "audit", "name": "nightly", "partition": "0", "offset": "0"}
MUTATING = [route for route in ROUTES if route.method != "GET"]
EVERY_ROUTE = """async ([target, requests]) => {
    const found = [];
    for (const [method, path, body, headers] of requests) {
        for (const mode of method === "POST" ? ["no-cors", "cors"] : ["cors"]) {
            await fetch(target + path, {method, mode, credentials: "include", body: body && JSON.stringify(body),
                                        headers: mode === "cors" ? headers : {}})
                .then((response) => response.text()).then((text) => found.push(text), () => 0);
        }
    }
    return found.filter((text) => text);
}"""


def requests_of(routes: list[Any], headers: dict[str, str]) -> list[Any]:
    """Requests that would be taken from a page of the broker's own."""
    headers = {"Content-Type": "application/json", **headers}
    return [
        (route.method, route.path.format_map(Filled(PARAMETERS)), dict(route.example) if route.body else None, headers)
        for route in routes
    ]


class Filled(dict[str, str]):
    """Parameters of a path; those that name nothing that exists are all the same."""

    def __missing__(self, name: str) -> str:
        return "x"


@pytest.mark.parametrize("place", FROM)
def test_no_route_that_changes_something_can_be_forged(profile, target, elsewhere, place):
    own = own_page(profile, target)
    tab = sign_in(own)
    page = profile.new_page()
    page.goto(elsewhere().url(FROM[place]))

    with unharmed(target, profile):
        # Even with the tab's secret, which it cannot know.
        assert page.evaluate(EVERY_ROUTE, [target.origin, requests_of(MUTATING, tab)]) == []

    assert call(own, "GET", "/me", headers=tab)[1]["name"] == "ann"  # nobody was signed out either


# Names that point to the broker.


def test_a_name_that_is_made_to_point_to_the_broker_opens_nothing(visited, target):
    rebound = target.origin.replace("localhost", REBOUND)
    page = visited.new_page()
    page.route(f"{rebound}/attack", lambda route: route.fulfill(content_type="text/html", body="<title>x</title>"))
    page.goto(f"{rebound}/attack")
    before = target.state()

    routes = [route for route in ROUTES if route.path not in PROBES]
    headers: list[dict[str, str]] = [{}, {"Authorization": "Bearer x"}, {"X-Forwarded-Host": "localhost"}]
    requests = [request for header in headers for request in requests_of(routes, header)]
    answers = page.evaluate(READ_ALL, requests)

    assert {status for status, _ in answers} <= {401, 403, 429}  # wrong tokens are limited
    assert CANARY not in dumped(answers)
    assert target.state() == before
    assert page.evaluate(ATTACKS["websocket"], rebound) == []
    assert visited.cookies(rebound) == []


PROBES = ("/livez", "/readyz")
READ_ALL = """async (requests) => {
    return await Promise.all(requests.map(async ([method, path, body, headers]) => {
        const response = await fetch(path, {method, headers, body: body && JSON.stringify(body)});
        return [response.status, await response.text()];
    }));
}"""


# Frames and links.


def test_pages_of_the_broker_cannot_be_shown_inside_others(visited, target, elsewhere):
    for place in FROM.values():
        page = visited.new_page()
        page.goto(elsewhere().url(place))
        for path in ("/docs", "/ui/", "/api/v1/queues"):
            page.evaluate(FRAME, target.origin + path)
            frame = page.frames[-1]
            assert frame.url.startswith("chrome-error:"), (place, path)
            assert "Penstock" not in frame.content()


FRAME = """(url) => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => done();
    frame.src = url;
    document.body.appendChild(frame);
})"""


def test_a_person_may_follow_a_link_to_the_broker_but_the_other_page_sees_nothing_of_it(profile, target, elsewhere):
    page = profile.new_page()
    page.goto(elsewhere().url(EVIL))

    with page.expect_popup() as opened:
        page.evaluate("(url) => { window.other = window.open(url); }", f"{target.origin}/ui/anything")
    opened.value.wait_for_load_state()

    expect(opened.value.get_by_role("heading", name="Sign in to Penstock")).to_be_visible()
    reading = "() => { try { return window.other.document.body.innerText; } catch { return 'refused'; } }"
    assert page.evaluate(reading) == "refused"
