"""URLs as they may be shown: what a URL keeps secret is masked."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "•••"
_USER: Final = re.compile(r"(//)[^/?#\s]*@")
_PASSWORD: Final = re.compile(r"//[^/?#\s]*:[^/?#\s]*@")
_SECRET: Final = re.compile(
    r"(?i)([?&;][^=&;#\s]*(?:secret|password|passwd|token|credential|signature|sig|key)[^=&;#\s]*=)[^&;#\s]*"
)


def masked(url: str) -> str:
    """The URL without names and passwords of users, and without values of its query that are named like secrets."""
    return _SECRET.sub(rf"\1{MASK}", _USER.sub(rf"\1{MASK}@", url))


def has_secret(url: str) -> bool:
    """Whether a URL has a password, or a value in its query that is named like a secret."""
    return bool(_PASSWORD.search(url) or _SECRET.search(url))
