"""JWTs: what a valid one says, and every way in which one is not valid."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from penstock.access import tokens as module
from penstock.access.grants import Grant
from penstock.access.token_keys import NO_KEYS, TokenKeys, parse_keys
from penstock.access.tokens import TokenVerifier
from penstock.clock import ManualClock
from penstock.errors import InvalidField, NotAuthenticated
from penstock.operations import Action
from tests.support.issuer import AUDIENCE, ISSUER, SECRET, claims, encoded, jwk, key_set, private_key, signed


class Keys:
    """A source whose keys the test replaces."""

    def __init__(self, *kinds: str) -> None:
        self.replace(*kinds)

    def replace(self, *kinds: str) -> None:
        self.keys: TokenKeys = parse_keys(key_set(*(jwk(kind) for kind in kinds))) if kinds else NO_KEYS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keys() -> Keys:
    return Keys("RS256", "ES256", "EdDSA")


@pytest.fixture
def verifier(keys, clock) -> TokenVerifier:
    return TokenVerifier(ISSUER, AUDIENCE, keys, "penstock", clock)


def refusal(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        verifier.verify(token)
    assert caught.value.__cause__ is None
    return caught.value.message


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
def test_a_token_says_who_has_it_and_what_they_may(verifier, clock, kind):
    said = verifier.verify(signed(kind, claims(clock)))

    assert said.name == "jwt:ann"
    assert said.grants == (Grant(Action.PUSH, "orders"),)
    assert said.namespace == ""
    assert said.expires_at == clock.now() + 3600 * 1_000_000


def test_a_token_signed_with_a_shared_secret_counts_where_that_is_the_key(clock):
    verifier = TokenVerifier(ISSUER, AUDIENCE, Keys("HS256"), "penstock", clock)

    assert verifier.verify(signed("HS256", claims(clock))).name == "jwt:ann"
    assert verifier.verify(signed("HS256", claims(clock), kid=None)).name == "jwt:ann"


def test_tokens_of_pyjwt_itself_count(verifier, clock):
    token = jwt.encode(claims(clock), private_key("ES256"), "ES256", headers={"kid": "ES256"})

    assert verifier.verify(token).name == "jwt:ann"


@pytest.mark.parametrize(
    ("claim", "grants"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("push:orders", ["push:orders"]),
        ("push:orders  viewer:shop.*", ["push:orders", "monitor:shop.*"]),
        (["push:orders", "consume:*"], ["push:orders", "consume:*"]),
    ],
)
def test_grants_are_a_list_or_a_text_and_no_claim_grants_nothing(verifier, clock, claim, grants):
    said = verifier.verify(signed("RS256", claims(clock, penstock=claim)))

    assert [str(grant) for grant in said.grants] == grants


def test_the_claim_of_grants_has_the_name_that_was_set(keys, clock):
    verifier = TokenVerifier(ISSUER, AUDIENCE, keys, "https://example.org/grants", clock)
    token = signed("RS256", claims(clock, **{"https://example.org/grants": "read:a"}))

    assert [str(grant) for grant in verifier.verify(token).grants] == ["read:a"]


def test_grants_stay_within_the_namespace_of_the_token(verifier, clock):
    said = verifier.verify(signed("RS256", claims(clock, penstock="push:*", penstock_namespace="team-a")))

    assert said.namespace == "team-a"
    assert [str(grant) for grant in said.grants] == ["push:team-a.*"]


def test_roles_of_ones_own_count_and_are_looked_up_again_when_they_change(keys, clock):
    roles = {"clerk": ["push:orders"]}
    verifier = TokenVerifier(ISSUER, AUDIENCE, keys, "penstock", clock, roles=lambda: roles)
    token = signed("RS256", claims(clock, penstock="clerk"))
    assert [str(grant) for grant in verifier.verify(token).grants] == ["push:orders"]

    roles["clerk"] = ["read:orders"]
    verifier.forget()

    assert [str(grant) for grant in verifier.verify(token).grants] == ["read:orders"]


def test_one_of_several_audiences_is_enough(verifier, clock):
    assert verifier.verify(signed("RS256", claims(clock, aud=["other", AUDIENCE]))).name == "jwt:ann"


HOUR = 3600
BAD_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"exp": None}, "it has no exp"),
    ({"iss": None}, "it has no iss"),
    ({"aud": None}, "it has no aud"),
    ({"sub": None}, "it has no sub"),
    ({"exp": "tomorrow"}, "wrong type: .*exp"),
    ({"exp": True}, "wrong type: .*exp"),
    ({"exp": 1e300}, "its exp is not a time"),
    ({"exp": -1}, "its exp is not a time"),
    ({"exp": 10**30}, "its exp is not a time|wrong type"),
    ({"nbf": "now"}, "wrong type: .*nbf"),
    ({"iat": []}, "wrong type: .*iat"),
    ({"iss": "https://other.example"}, "its iss is 'https://other.example'"),
    ({"iss": ISSUER + "/"}, "its iss is"),
    ({"iss": 7}, "wrong type: .*iss"),
    ({"aud": "other"}, "its aud is 'other'"),
    ({"aud": AUDIENCE + "x"}, "its aud is"),
    ({"aud": []}, "its aud is"),
    ({"aud": ["other"] * 100}, "its aud is"),
    ({"aud": {AUDIENCE: 1}}, "wrong type: .*aud"),
    ({"sub": 7}, "wrong type: .*sub"),
    ({"sub": ""}, "its sub '' is not a valid name"),
    ({"sub": "  "}, "its sub"),
    ({"sub": "a\nb"}, "its sub"),
    ({"sub": "\x1b[2J"}, "its sub"),
    ({"sub": "x" * 256}, "its sub"),
    ({"penstock": 7}, "claim 'penstock': it is neither a list nor a string"),
    ({"penstock": {"push": "orders"}}, "neither a list nor a string"),
    ({"penstock": [7]}, "claim 'penstock': grants: 7 is not text"),
    ({"penstock": "pusher:orders"}, "is not an action or a role"),
    ({"penstock": "push:a*b"}, "is not a pattern"),
    ({"penstock": "operate:orders"}, "for the broker as a whole"),
    ({"penstock": "x" * 5000}, "is not an action or a role"),
    ({"penstock_namespace": 7}, "wrong type: .*penstock_namespace"),
    ({"penstock_namespace": "a.b"}, "has a dot"),
    ({"penstock_namespace": "../x"}, "not a valid name"),
    ({"penstock_namespace": "team-a", "penstock": "push:orders"}, "outside the namespace"),
    ({"penstock_namespace": "team-a", "penstock": "owner"}, "cannot be granted in a namespace"),
]


@pytest.mark.parametrize(("fields", "problem"), BAD_CLAIMS, ids=lambda value: str(value)[:60])
def test_a_token_with_a_bad_claim_is_refused_with_the_reason(verifier, clock, fields, problem):
    token = signed("RS256", claims(clock, **fields))

    with pytest.raises(NotAuthenticated, match=problem) as caught:
        verifier.verify(token)
    assert len(caught.value.message) < 1000
    assert token[-40:] not in str(caught.value)


def unsigned(clock: ManualClock) -> str:
    return f"{encoded(json.dumps({'alg': 'none', 'typ': 'JWT'}).encode())}.{encoded(b'{}')}."


def signed_with_a_public_key(clock: ManualClock) -> str:
    """The old attack: the public key, which everybody has, as the secret of HS256."""
    pem = json.dumps(jwk("RS256")).encode()
    head = encoded(json.dumps({"alg": "HS256", "kid": "RS256"}).encode())
    text = f"{head}.{encoded(json.dumps(claims(clock)).encode())}"
    return f"{text}.{encoded(jwt.get_algorithm_by_name('HS256').sign(text.encode(), pem))}"


BAD_TOKENS: dict[str, tuple[Callable[[ManualClock], str], str]] = {
    "empty": (lambda clock: "", "neither an API key nor a JWT"),
    "a word": (lambda clock: "secret", "neither an API key nor a JWT"),
    "one dot": (lambda clock: "a.b", "neither an API key nor a JWT"),
    "three dots": (lambda clock: signed("RS256", claims(clock)) + ".x", "neither an API key nor a JWT"),
    "five parts": (lambda clock: "a.b.c.d.e", "neither an API key nor a JWT"),
    "not ascii": (lambda clock: "é.ü.\ud800", "neither an API key nor a JWT"),
    "no base64": (lambda clock: "?.?.?", "its header is not that of a JWT"),
    "no json": (lambda clock: "AAAA.AAAA.AAAA", "its header is not that of a JWT"),
    "a header that is a list": (lambda clock: f"{encoded(b'[]')}.AAAA.AAAA", "its header is not"),
    "a nested header": (lambda clock: f"{encoded(b'[' * 3000)}.AAAA.AAAA", "its header is not"),
    "too long": (lambda clock: signed("RS256", claims(clock, more="x" * 9000)), "longer than 8,192 bytes"),
    "far too long": (lambda clock: "a" * 10_000_000, "longer than 8,192 bytes"),
    "alg none": (unsigned, "no kid"),
    "alg none with a kid": (lambda clock: signed("RS256", claims(clock), alg="none"), "its alg is 'none'"),
    "alg None": (lambda clock: signed("RS256", claims(clock), alg="None"), "its alg is 'None'"),
    "no alg": (lambda clock: signed("RS256", claims(clock), alg=None), "its header is not"),
    "alg is a list": (lambda clock: signed("RS256", claims(clock), alg=["RS256"]), "its header is not"),
    "a stronger alg": (lambda clock: signed("RS256", claims(clock), alg="RS512"), "its alg is 'RS512'"),
    "a public key as secret": (signed_with_a_public_key, "its alg is 'HS256', but the key is for RS256"),
    "another's secret": (lambda clock: signed("HS256", claims(clock)), "its kid 'HS256' is not among"),
    "the kid of another key": (lambda clock: signed("RS256", claims(clock), kid="ES256"), "the key is for ES256"),
    "unknown kid": (lambda clock: signed("RS256", claims(clock), kid="other"), "its kid 'other' is not among"),
    "long kid": (lambda clock: signed("RS256", claims(clock), kid="x" * 3000), "is not among the issuer's keys"),
    "no kid": (lambda clock: signed("RS256", claims(clock), kid=None), "no kid, and the issuer has several keys"),
    "kid is a number": (lambda clock: signed("RS256", claims(clock), kid=7), "its header is not"),
    "typ": (lambda clock: signed("RS256", claims(clock), typ="dpop+jwt"), "its typ is 'dpop.jwt' instead of JWT"),
    "typ is a number": (lambda clock: signed("RS256", claims(clock), typ=7), "its header is not"),
    "crit": (lambda clock: signed("RS256", claims(clock), crit=["exp"], exp=1), "its header"),
    "crit b64": (lambda clock: signed("RS256", claims(clock), crit=["b64"], b64=True), "crit"),
    "another's key": (lambda clock: signed("RS256-other", claims(clock), kid="RS256"), "its signature is not valid"),
    "claims are a list": (lambda clock: signed("RS256", []), "its claims are not a JSON object"),
    "claims are a text": (lambda clock: signed("RS256", "x"), "its claims are not a JSON object"),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_text_that_is_no_valid_token_is_refused_with_the_reason(verifier, clock, name):
    make, problem = BAD_TOKENS[name]
    token = make(clock)

    with pytest.raises(NotAuthenticated, match=problem) as caught:
        verifier.verify(token)
    assert len(token) < 20 or token[-20:] not in str(caught.value)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", None])
def test_the_usual_types_are_taken(verifier, clock, typ):
    assert verifier.verify(signed("RS256", claims(clock), typ=typ)).name == "jwt:ann"


def test_a_header_that_names_a_key_of_its_own_is_not_followed(verifier, clock):
    headers = {"jwk": jwk("RS256-other"), "jku": "https://evil.example/keys", "x5u": "https://evil.example/cert"}

    assert "signature" in refusal(verifier, signed("RS256-other", claims(clock), kid="RS256", **headers))


@pytest.mark.parametrize(
    ("fields", "after_seconds", "problem"),
    [
        ({"exp": 10}, 9, None),
        ({"exp": 10}, 10, "it has expired"),
        ({"exp": 10}, 10_000, "it has expired"),
        ({"nbf": 60}, 0, None),
        ({"nbf": 61}, 0, "it is not valid yet"),
        ({"nbf": 61}, 1, None),
        ({"iat": 60}, 0, None),
        ({"iat": 61}, 0, "it was issued in the future"),
        ({"nbf": 0.5, "iat": -0.5, "exp": 10.5}, 10, None),
    ],
)
def test_a_token_counts_from_nbf_to_exp(verifier, clock, fields, after_seconds, problem):
    now = clock.now() / 1_000_000
    token = signed("RS256", claims(clock, **{name: now + seconds for name, seconds in fields.items()}))
    clock.advance(seconds=after_seconds)

    if problem is None:
        assert verifier.verify(token).name == "jwt:ann"
    else:
        assert problem in refusal(verifier, token)


def test_any_changed_letter_makes_a_token_invalid(verifier, clock):
    draw = random.Random(7)
    for kind in ("RS256", "ES256", "EdDSA"):
        token = signed(kind, claims(clock))
        for _ in range(60):
            place = draw.randrange(len(token))
            other = draw.choice([letter for letter in "AQgwBRhx012_-.=" if letter != token[place]])
            refusal(verifier, token[:place] + other + token[place + 1 :])


# The cache.


@pytest.fixture
def checked(monkeypatch) -> list[str]:
    """Tokens whose signature was looked at."""
    seen: list[str] = []
    look = module._signed

    def recording(token: str, keys: TokenKeys) -> bytes:
        seen.append(token)
        return look(token, keys)

    monkeypatch.setattr(module, "_signed", recording)
    return seen


def test_a_verified_token_is_not_verified_again_until_it_expires(verifier, clock, checked):
    token = signed("RS256", claims(clock))
    first = verifier.verify(token)
    clock.advance(seconds=3599)

    assert verifier.verify(token) is first
    assert len(checked) == 1

    clock.advance(seconds=1)
    assert "expired" in refusal(verifier, token)
    assert not verifier._cached


def test_a_token_that_is_not_valid_is_not_kept(verifier, clock, checked):
    token = signed("RS256-other", claims(clock), kid="RS256")
    for _ in range(3):
        refusal(verifier, token)

    assert len(checked) == 3
    assert not verifier._cached


def test_tokens_of_a_key_that_was_withdrawn_are_refused_at_once(verifier, keys, clock):
    token, other = signed("RS256", claims(clock)), signed("ES256", claims(clock))
    verifier.verify(token)
    verifier.verify(other)

    keys.replace("ES256")

    assert "is not among the issuer's keys" in refusal(verifier, token)
    assert verifier.verify(other).name == "jwt:ann"


def test_without_keys_every_token_is_refused(clock):
    verifier = TokenVerifier(ISSUER, AUDIENCE, Keys(), "penstock", clock)

    assert "not known yet" in refusal(verifier, signed("RS256", claims(clock)))


def test_the_cache_is_bounded_and_drops_what_was_not_used_for_longest(clock, checked, monkeypatch):
    monkeypatch.setattr(module, "CACHED_MAX", 3)
    verifier = TokenVerifier(ISSUER, AUDIENCE, Keys("HS256"), "penstock", clock)
    tokens = [signed("HS256", claims(clock, sub=f"user{number}")) for number in range(4)]
    for token in [*tokens[:3], tokens[0], tokens[3]]:
        verifier.verify(token)
    assert (len(verifier._cached), len(checked)) == (3, 4)

    verifier.verify(tokens[0])
    assert len(checked) == 4
    verifier.verify(tokens[1])
    assert len(checked) == 5


def test_no_token_is_kept(clock):
    verifier = TokenVerifier(ISSUER, AUDIENCE, Keys("HS256"), "penstock", clock)
    token = signed("HS256", claims(clock))
    verifier.verify(token)

    kept = repr(verifier.__dict__)
    assert token not in kept
    assert token.rpartition(".")[2] not in kept
    assert SECRET.decode() not in kept


def test_without_the_extra_the_error_says_what_to_install(verifier, clock, monkeypatch):
    token = signed("RS256", claims(clock))
    monkeypatch.setitem(sys.modules, "jwt", None)
    module._jws.cache_clear()

    with pytest.raises(InvalidField, match=r"pip install 'penstock-mq\[security\]'"):
        verifier.verify(token)
