"""Key sets: which keys of a JWKS count, and which sets are refused."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.token_keys import NO_KEYS, parse_keys
from penstock.errors import InvalidField, NotAuthenticated
from tests.support.issuer import SECRET, encoded, jwk, key_set

KINDS = ["RS256", "ES256", "EdDSA"]


@pytest.mark.parametrize("kind", [*KINDS, "HS256"])
@pytest.mark.parametrize("has_alg", [True, False])
def test_the_algorithm_of_a_key_follows_from_its_kind(kind, has_alg):
    keys = parse_keys(key_set(jwk(kind, alg=kind if has_alg else None)))

    assert keys.find(kind).algorithm_name == kind
    assert keys.is_secret == (kind == "HS256")


@pytest.mark.parametrize(
    "other",
    [
        jwk("RS256-other", use="enc"),
        jwk("RS256-other", alg="RSA-OAEP"),
        jwk("RS256-other", alg="PS256"),
        jwk("RS256-other", alg="HS256"),
        jwk("RS256-other", alg="none"),
        jwk("RS256-other", key_ops=["sign"]),
        jwk("ES384"),
        jwk("ES256", alg="RS256"),
        {"kty": "oct", "k": encoded(SECRET), "kid": "x", "alg": "RS256"},
        {"kty": "quantum", "kid": "x"},
        {"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "x"},
    ],
)
def test_keys_for_something_else_are_left_out(other):
    keys = parse_keys(key_set(jwk("RS256", use="sig", key_ops=["verify"]), other))

    assert len(keys) == 1
    with pytest.raises(NotAuthenticated, match="not among the issuer's keys"):
        keys.find(other["kid"])
    with pytest.raises(InvalidField, match="no key in it can verify a token"):
        parse_keys(key_set(other))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not a JSON Web Key Set"),
        (b"-----BEGIN PUBLIC KEY-----", "not a JSON Web Key Set"),
        (b"\xff", "not a JSON Web Key Set"),
        (b"[]", "not a JSON Web Key Set"),
        (b"{}", "not a JSON Web Key Set"),
        (b'{"keys": {}}', "not a JSON Web Key Set"),
        (b'{"keys": [7]}', "not a JSON Web Key Set"),
        (b'{"keys": [{}]}', "not a JSON Web Key Set"),
        (b'{"keys": [{"kty": 7}]}', "not a JSON Web Key Set"),
        (b'{"keys": ' + b"[" * 100_000, "not a JSON Web Key Set"),
        (b'{"keys": []}', "no key in it"),
        (b" " * 300_000, "more than 262,144 bytes"),
        (key_set(*({"kty": "x", "kid": str(n)} for n in range(101))), "more than 100 keys"),
        (key_set({"kty": "RSA"}), r"keys\[0\] is not a valid RS256 key"),
        (key_set(jwk("RS256", n="?")), r"keys\[0\] is not a valid RS256 key"),
        (key_set(jwk("RS256", n=7)), r"keys\[0\] is not a valid RS256 key"),
        (key_set(jwk("ES256", x="AAAA")), r"keys\[0\] is not a valid ES256 key"),
        (key_set(jwk("EdDSA", x="AAAA")), r"keys\[0\] is not a valid EdDSA key"),
        (key_set(jwk("HS256", k=None)), r"keys\[0\] is not a valid HS256 key"),
        (key_set(jwk("RS256-short")), "shorter than 2048 bits"),
        (key_set(jwk("HS256", k=encoded(SECRET[:31]))), "shorter than 32 bytes"),
        (key_set(jwk("RS256", d="AAAA")), "is a private key"),
        (key_set(jwk("RS256"), jwk("HS256")), "secrets beside public keys"),
        (key_set(jwk("RS256"), jwk("ES256", kid=None)), "has no kid"),
        (key_set(jwk("RS256", kid="a"), jwk("ES256", kid="a")), "the same kid"),
    ],
)
def test_what_is_no_safe_key_set_is_refused_with_the_reason(text, problem):
    with pytest.raises(InvalidField, match=problem) as caught:
        parse_keys(text)

    assert encoded(SECRET[:12]) not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_is_found_by_its_id_or_because_it_is_the_only_one():
    one = parse_keys(key_set(jwk("RS256")))
    two = parse_keys(key_set(jwk("RS256"), jwk("ES256")))
    unnamed = parse_keys(key_set(jwk("RS256", kid=None)))

    assert one.find(None) is one.find("RS256")
    assert unnamed.find(None).algorithm_name == "RS256"
    assert two.find("ES256").algorithm_name == "ES256"
    for keys, id, problem in [
        (two, None, "no kid"),
        (one, "other", "not among the issuer's keys"),
        (unnamed, "other", "not among the issuer's keys"),
        (NO_KEYS, None, "not known yet"),
    ]:
        with pytest.raises(NotAuthenticated, match=problem):
            keys.find(id)


def test_keys_show_their_ids_only():
    assert repr(parse_keys(key_set(jwk("HS256")))) == "TokenKeys(['HS256'])"


@given(st.binary(max_size=300))
def test_any_bytes_are_keys_or_refused(text):
    with pytest.raises(InvalidField):
        parse_keys(text)


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_without_the_extra_the_error_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(InvalidField, match=r"pip install 'penstock-mq\[security\]'"):
        parse_keys(key_set({"kty": "oct", "k": encoded(SECRET)}))
