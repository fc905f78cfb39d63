"""Sessions of browsers: how they begin, what proves them, and everything that ends them."""

from __future__ import annotations

import gc
from http.cookies import SimpleCookie

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import sessions as module
from penstock.access.grants import Principal, parse_grants
from penstock.access.sessions import Sessions, SignedIn, cookie_for, digest_of, link_of
from penstock.clock import ManualClock
from penstock.errors import NotAuthenticated, NotAuthorised


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sessions(clock) -> Sessions:
    return Sessions(clock)


@pytest.fixture
def ann() -> Principal:
    return Principal("ann", parse_grants(["viewer"]))


def refusal(sessions: Sessions, cookies: list[str], tab_secret: str = "", *, is_secure: bool = True) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        sessions.find(cookies, tab_secret, is_secure=is_secure)
    return caught.value.message


def test_over_https_the_cookie_proves_the_session(sessions, ann):
    signed_in = sessions.begin(ann, is_secure=True)

    assert sessions.find([signed_in.id], "", is_secure=True).user is ann
    assert signed_in.tab_secret == ""
    assert len(signed_in.id) == 43


def test_over_http_it_counts_only_with_the_secret_of_the_tab(sessions, ann):
    signed_in = sessions.begin(ann, is_secure=False)

    assert sessions.find([signed_in.id], signed_in.tab_secret, is_secure=False).user is ann
    for wrong in ("", "x", signed_in.id, signed_in.tab_secret[:-1], signed_in.tab_secret + "x", "\ud800"):
        assert refusal(sessions, [signed_in.id], wrong, is_secure=False) == "this tab is not signed in"


def test_the_secret_of_another_session_does_not_count(sessions, ann):
    first = sessions.begin(ann, is_secure=False)
    other = sessions.begin(Principal("bob"), is_secure=False)

    refusal(sessions, [first.id], other.tab_secret, is_secure=False)


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_session_does_not_count_on_a_listener_of_the_other_kind(sessions, ann, is_secure):
    signed_in = sessions.begin(ann, is_secure=is_secure)

    refusal(sessions, [signed_in.id], signed_in.tab_secret, is_secure=not is_secure)


@pytest.mark.parametrize("id", ["", "x", "A" * 43, "A" * 100_000, "\ud800" * 43, "é" * 43])
def test_an_unknown_id_is_refused(sessions, ann, id):
    sessions.begin(ann, is_secure=True)

    assert refusal(sessions, [id]) == "the session has ended"


def test_without_a_cookie_nobody_is_signed_in(sessions):
    assert refusal(sessions, []) == "nobody is signed in"


def test_a_cookie_that_another_port_planted_keeps_nobody_out(sessions, ann):
    planted = sessions.begin(Principal("mallory"), is_secure=False)
    signed_in = sessions.begin(ann, is_secure=False)

    cookies = ["A" * 43, planted.id, signed_in.id]
    assert sessions.find(cookies, signed_in.tab_secret, is_secure=False).user is ann


def test_a_second_tab_joins_the_session_of_its_browser(sessions, ann):
    first = sessions.begin(ann, is_secure=False)
    second = sessions.begin(ann, is_secure=False, cookies=[first.id])

    assert second.id == first.id
    assert second.tab_secret != first.tab_secret
    assert len(sessions) == 1
    for tab in (first, second):
        assert sessions.find([first.id], tab.tab_secret, is_secure=False).user is ann


def test_nobody_joins_the_session_of_another_principal(sessions, ann):
    planted = sessions.begin(Principal("mallory"), is_secure=False)

    signed_in = sessions.begin(ann, is_secure=False, cookies=[planted.id])

    assert signed_in.id != planted.id
    refusal(sessions, [planted.id], signed_in.tab_secret, is_secure=False)
    refusal(sessions, [signed_in.id], planted.tab_secret, is_secure=False)


def test_over_https_every_sign_in_has_a_new_id(sessions, ann):
    first = sessions.begin(ann, is_secure=True)

    assert sessions.begin(ann, is_secure=True, cookies=[first.id]).id != first.id


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_session_ends_after_twelve_hours_and_with_it_what_was_begun(sessions, ann, clock, is_secure):
    ended = []
    signed_in = sessions.begin(ann, is_secure=is_secure)
    signed_in.session.principal.once_revoked(lambda: ended.append("stream"))

    clock.advance(seconds=12 * 3600 - 1)
    sessions.tick()
    sessions.find([signed_in.id], signed_in.tab_secret, is_secure=is_secure)
    assert not ended

    clock.advance(seconds=1)
    refusal(sessions, [signed_in.id], signed_in.tab_secret, is_secure=is_secure)
    sessions.tick()
    assert ended == ["stream"]
    assert len(sessions) == 0


def test_signing_out_ends_one_session_and_no_other(sessions, ann):
    first, second = (sessions.begin(ann, is_secure=True) for _ in range(2))
    ended = []
    first.session.principal.once_revoked(lambda: ended.append("first"))
    second.session.principal.once_revoked(lambda: ended.append("second"))

    sessions.end(first.session)
    sessions.end(first.session)

    assert ended == ["first"]
    refusal(sessions, [first.id])
    sessions.find([second.id], "", is_secure=True)


def test_all_sessions_and_links_of_a_user_end_together(sessions, ann):
    mine = [sessions.begin(ann, is_secure=True) for _ in range(3)]
    code = sessions.new_code(ann)
    other = sessions.begin(Principal("bob"), is_secure=True)

    assert sessions.end_all("ann") == 3

    for signed_in in mine:
        refusal(sessions, [signed_in.id])
    with pytest.raises(NotAuthenticated):
        sessions.redeem(code)
    sessions.find([other.id], "", is_secure=True)


def test_a_session_ends_with_its_principal(sessions, ann):
    ended = []
    signed_in = sessions.begin(ann, is_secure=True)
    signed_in.session.principal.once_revoked(lambda: ended.append("stream"))
    code = sessions.new_code(ann)

    ann.revoke()

    assert ended == ["stream"]
    refusal(sessions, [signed_in.id])
    with pytest.raises(NotAuthenticated):
        sessions.redeem(code)
    sessions.tick()
    assert len(sessions) == 0


def test_an_end_that_was_taken_back_is_not_called(sessions, ann):
    ended = []

    def end() -> None:
        ended.append("stream")

    session = sessions.begin(ann, is_secure=True).session
    session.principal.once_revoked(end)
    session.principal.forget(end)
    sessions.end(session)

    assert not ended


def test_the_principal_keeps_nothing_of_sessions_that_are_over(sessions, ann):
    for _ in range(10):
        sessions.end(sessions.begin(ann, is_secure=True).session)
    gc.collect()

    assert not ann._on_revoked
    assert not ann._derived


def test_a_code_counts_once_and_for_ten_minutes(sessions, ann, clock):
    code, late = sessions.new_code(ann), sessions.new_code(ann)
    clock.advance(seconds=599)
    assert sessions.redeem(code) is ann
    with pytest.raises(NotAuthenticated, match="has been used"):
        sessions.redeem(code)
    clock.advance(seconds=1)

    for used in (late, "", "x", "A" * 43, "\ud800"):
        with pytest.raises(NotAuthenticated, match="penstock dashboard"):
            sessions.redeem(used)


def test_numbers_are_bounded_and_one_user_ends_only_sessions_of_their_own(sessions, ann, monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_PER_PRINCIPAL_MAX", 5)
    monkeypatch.setattr(module, "SESSIONS_MAX", 20)
    monkeypatch.setattr(module, "CODES_MAX", 3)
    monkeypatch.setattr(module, "TABS_MAX", 4)
    bob = sessions.begin(Principal("bob"), is_secure=True)

    mine = [sessions.begin(ann, is_secure=True) for _ in range(30)]
    assert len(sessions) == 6
    sessions.find([bob.id], "", is_secure=True)
    refusal(sessions, [mine[24].id])
    sessions.find([mine[25].id], "", is_secure=True)

    codes = [sessions.new_code(ann) for _ in range(10)]
    assert len(sessions._codes) == 3
    assert sessions.redeem(codes[-1]) is ann

    tab = sessions.begin(ann, is_secure=False)
    tabs = [sessions.begin(ann, is_secure=False, cookies=[tab.id]) for _ in range(10)]
    assert len(tab.session.tab_digests) == 4
    sessions.find([tab.id], tabs[-4].tab_secret, is_secure=False)
    refusal(sessions, [tab.id], tabs[-5].tab_secret, is_secure=False)

    for number in range(50):
        sessions.begin(Principal(f"user{number}"), is_secure=True)
    assert len(sessions) == 20


def test_no_secret_is_kept_or_shown(sessions, ann):
    signed_in: SignedIn = sessions.begin(ann, is_secure=False)
    code = sessions.new_code(ann)
    kept = repr(
        (sessions.__dict__, {slot: getattr(signed_in.session, slot) for slot in type(signed_in.session).__slots__})
    )

    for secret in (signed_in.id, signed_in.tab_secret, code):
        assert secret not in kept
        assert secret not in repr(signed_in)
    assert digest_of(signed_in.id) in sessions._sessions


def test_the_cookie_over_https_can_be_set_by_this_host_only():
    cookie = cookie_for(is_https=True, is_loopback=False, port=7711)

    assert cookie.set("abc") == "__Host-penstock=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"
    assert cookie.clear() == "__Host-penstock=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict; Secure"


def test_the_cookie_on_loopback_names_its_port():
    cookie = cookie_for(is_https=False, is_loopback=True, port=7711)

    assert cookie.set("abc") == "penstock_7711=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"


def test_nobody_signs_in_over_plain_http_on_a_network():
    with pytest.raises(NotAuthorised, match="tls_certificate"):
        cookie_for(is_https=False, is_loopback=False, port=7711)


@pytest.mark.parametrize(
    ("header", "ids"),
    [
        ("", []),
        (";;=;", []),
        ("penstock_7711=", []),
        ("penstock_7711", []),
        ("penstock_7711=a", ["a"]),
        (" a=b;  penstock_7711=a ;c=d", ["a"]),
        ('penstock_7711="a"', ["a"]),
        ("penstock_7711=a; penstock_7711=b", ["a", "b"]),
        ("xpenstock_7711=a; penstock_77110=b; PENSTOCK_7711=c", []),
        ("penstock_7711=a=b", ["a=b"]),
        ("; ".join(["penstock_7711=a"] * 100), ["a"] * 8),
    ],
)
def test_ids_are_read_from_a_cookie_header(header, ids):
    assert cookie_for(is_https=False, is_loopback=True, port=7711).read(header) == ids


@given(st.text(max_size=200))
def test_any_cookie_header_is_read_without_an_error(header):
    assert len(cookie_for(is_https=True, is_loopback=False, port=1).read(header)) <= 8


def test_what_is_set_is_what_is_read(sessions, ann):
    cookie = cookie_for(is_https=True, is_loopback=False, port=7711)
    id = sessions.begin(ann, is_secure=True).id
    browser = SimpleCookie(cookie.set(id))

    assert cookie.read("; ".join(f"{name}={morsel.value}" for name, morsel in browser.items())) == [id]


def test_the_code_of_a_link_is_in_its_fragment():
    assert link_of("http://127.0.0.1:7711", "abc") == "http://127.0.0.1:7711/ui/#code=abc"
