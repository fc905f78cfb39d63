"""API keys: `penstock_<id>_<secret>`. The secret has 256 random bits, so a plain SHA-256 of it is safe to store."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

PREFIX: Final = "penstock_"
_KEY: Final = re.compile(r"penstock_([0-9a-z]{1,32})_([0-9A-Za-z_-]{43})")


class NewKey(NamedTuple):
    """A key that was just made: the only moment at which its text is known."""

    id: str
    text: str
    digest: str

    def __repr__(self) -> str:
        return f"NewKey({self.id!r})"


def make_key(id: str = "") -> NewKey:
    """A new random key."""
    id = id or secrets.token_hex(6)
    text = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
    return NewKey(id, text, digest_of(text))


def key_id(text: str) -> str | None:
    """The id that a key carries; None when the text is no key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def digest_of(text: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_key(text: str, digest: str) -> bool:
    """Whether this is the key with that digest; takes the same time either way."""
    return hmac.compare_digest(digest_of(text), digest)
