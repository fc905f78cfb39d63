"""Where brokers are: `penstock://host:port` or `http://host:port`, one or several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import InvalidField

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+|\[[0-9A-Fa-f:.]+\]:\d+")
PORTS: Final = {"penstock": 7710, "http": 7711}
_HINT: Final = "a URL is like penstock://localhost:7710 or http://localhost:7711; several are separated by commas"


class Address(NamedTuple):
    """One place to try."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def addresses(urls: str | Sequence[str]) -> tuple[Address, ...]:
    """All the places that are named, in order; they must speak the same protocol."""
    texts = urls.split(",") if isinstance(urls, str) else list(urls)
    found = tuple(_address(text) for text in texts)
    if not found:
        raise InvalidField("url: there is none", hint=_HINT)
    if len({each.scheme for each in found}) > 1:
        raise InvalidField(f"url: {urls!r} mixes protocols", hint=_HINT)
    return found


def spelt_out(url: str) -> str:
    """An address with its scheme, unless it is a directory: `host:port` means a broker, `./host:port` does not."""
    return f"penstock://{url}" if _HOST_AND_PORT.fullmatch(url) else url


def _address(text: object) -> Address:
    if not isinstance(text, str):
        raise InvalidField(f"url: {text!r} is not text", hint=_HINT)
    url = spelt_out(text.strip())
    if "://" not in url:
        hint = f"penstock.open({text!r}) opens a directory; {_HINT}" if text else _HINT
        raise InvalidField(f"url: {text!r} is not the URL of a broker", hint=hint)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidField(f"url: {_without_password(url)!r} is not a URL", hint=_HINT) from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme not in PORTS or not parts.hostname or extra or port == 0:
        raise InvalidField(f"url: {_without_password(url)!r} is not the URL of a broker", hint=_HINT)
    return Address(parts.scheme, parts.hostname, port or PORTS[parts.scheme])


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
