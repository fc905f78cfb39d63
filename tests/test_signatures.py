"""Signatures of errors: what varies gives way, what names code stays."""

from __future__ import annotations

import pytest

from penstock.signatures import SIGNATURE_CHARS_MAX, signature, signature_id, signature_of

TRACEBACK = """Traceback (most recent call last):
  File "/app/shop/orders.py", line 12, in price
    return RATES[order["currency"]]
  File "/usr/lib/python3.11/enum.py", line 7, in find
    raise KeyError(name)
KeyError: 'currency'
"""


@pytest.mark.parametrize(
    ("error", "about"),
    [
        ("", ""),
        ("KeyError: 'currency'", "KeyError: 'currency'"),
        ("ValueError: bad order 'A-17' of 2030-01-31", "ValueError: bad order <text> of <date>"),
        ("HTTP 503 from https://a.b/c?d=1 after 1.5 s", "HTTP 503 from <url> after <n> s"),
        ("no file /var/lib/x/17.json for ann@b.example", "no file <path> for <email>"),
        ("lost 0190f3a2-7b1c-7c00-8000-0123456789ab at 0xdeadbeef", "lost <uuid> at <hex>"),
        ("ids: 1, 2, 3 failed", "ids: <n>, … failed"),
        (TRACEBACK, "KeyError: 'currency' at orders.py:price"),
    ],
)
def test_what_varies_gives_way(error, about):
    assert signature(error) == about


def test_long_errors_are_cut_and_letters_without_one_go_by_their_reason():
    assert len(signature("x " * 100_000)) <= SIGNATURE_CHARS_MAX
    assert signature_of("", "evicted") == "(evicted, no error given)"
    assert signature_id("KeyError: 'currency'") == signature_id("KeyError: 'currency'")
    assert len(signature_id("\udcff")) == 8


def test_the_exception_of_a_traceback_is_what_stands_behind_its_last_frame():
    head, frame = "Traceback (most recent call last):\n", '  File "a.py", line 1, in f\n'
    assert signature(f"{head}{frame}    x\nFirst: a\n\n{head}{frame}    y\nSecond: b") == "Second: b at a.py:f < a.py:f"
    assert signature(f"{head}{frame}    x\n\nFirst: a").startswith("Traceback")
    assert (
        signature(f"{head}{frame}    x\nFirst: a\n{frame}")
        == f"First: a {' '.join(frame.split())}".replace('"a.py"', "<text>").replace("line 1", "line <n>")
        + " at a.py:f < a.py:f"
    )


def test_hostile_errors_end():
    """A pattern that tried every way to match would take minutes for some of these, and the test would hang."""
    frames = "Traceback (most recent call last)" + '\n  File "' * 2_000
    for text in ("'" * 16_000, "1." * 8_000, "/a" * 8_000, "a" * 16_000 + "@", "a." * 8_000, frames, "0" * 16_000):
        assert len(signature(text)) < 20_000
