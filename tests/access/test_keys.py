"""API keys: their form, their digests, and what is no key."""

from __future__ import annotations

import ast
import hmac
from pathlib import Path

import pytest

from penstock.access import keys
from penstock.access.keys import digest_of, is_key, key_id, make_key

SECRETS = ("digest", "proof", "secret", "password", "signature")


def test_keys_are_random_and_have_the_form_that_scanners_look_for():
    made = [make_key() for _ in range(100)]

    assert len({key.text for key in made}) == len({key.id for key in made}) == 100
    for key in made:
        prefix, id, secret = key.text.split("_", 2)
        assert (prefix, id, len(secret)) == ("penstock", key.id, 43)
        assert key_id(key.text) == key.id


def test_a_key_is_told_by_its_digest_and_the_digest_tells_nothing_of_it():
    key, other = make_key("a1"), make_key("a1")

    assert is_key(key.text, key.digest)
    assert not is_key(other.text, key.digest)
    assert not is_key(key.text, digest_of(""))
    assert len(key.digest) == 64
    assert key.text.rpartition("_")[2] not in key.digest


@pytest.mark.parametrize(
    "text",
    [
        "", "penstock_", "penstock__" + "a" * 43, "penstock_a_" + "a" * 42, "penstock_a_" + "a" * 44,
        "Penstock_a_" + "a" * 43, "penstock_A_" + "a" * 43, "penstock_a_" + "ä" * 43, " penstock_a_" + "a" * 43,
        "penstock_a_" + "a" * 43 + "\n", "penstock_" + "a" * 33 + "_" + "a" * 43, "eyJhbGciOiJub25lIn0.e30.",
    ],
)  # fmt: skip
def test_what_is_no_key_has_no_id(text):
    assert key_id(text) is None


def test_digests_are_compared_in_constant_time(monkeypatch):
    compared = []

    def noted(one: str, other: str) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", type("Hmac", (), {"compare_digest": staticmethod(noted)}))
    key = make_key()
    assert is_key(key.text, key.digest)
    assert compared == [(key.digest, key.digest)]


def test_nothing_in_the_package_compares_digests_with_equals():
    """`==` stops at the first byte that differs, and tells by its time where that is."""
    package = Path(keys.__file__).parent
    wrong = []
    for path in sorted(package.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                names = " ".join(map(ast.unparse, (node.left, *node.comparators)))
                if "len(" not in names and any(
                    word in names for word in ("digest", "proof", "secret", "password", "signature")
                ):
                    wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []
