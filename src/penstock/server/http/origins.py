"""Where a request comes from: which hosts, origins and sites are refused, and whose address counts.

A page of somebody else can have its own name point to this machine (DNS rebinding): so a request names, in `Host`, an
IP address, a loopback name, the name that the broker listens on, or one of the setting `hosts`. It can send requests
from its own origin: so `Origin` is this server's own, with scheme, host and port, or one of `cors_origins`. It can load
things from here without an origin: so what comes from another site is refused, but for a person who follows a link to a
page. Probes of a load balancer know no name, and are exempt.

The client's address is that of the peer, or the one that trusted proxies name. `X-Forwarded-For` is a list to which
each proxy appends the address it received the request from. Anybody may begin such a list, so it is read from its end,
and only as far as each next address was added by a trusted one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.errors import BadRequest, NotAuthorised, PenstockError

PROBES: Final = (b"/livez", b"/readyz")
# What needs no login: probes, the static files of the dashboard, logging in; and frames, which begin with HELLO.
OPEN: Final = frozenset((*PROBES, b"/", b"/ui", b"/api/v1/sessions", b"/api/v1/rpc"))
PAGES: Final = (b"/", b"/docs", b"/ui")  # that may be linked to; so may all below /ui/
_HOST: Final = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z._-]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS: Final = {"http": b":80", "https": b":443"}
_OWN_SITES: Final = (b"same-origin", b"none")  # none: typed by a person, or a browser that does not say
_ORIGIN_HINT: Final = "add the origin to cors_origins"


class Browsers:
    """Refuses requests that a page of somebody else may have caused."""

    def __init__(self, bound: str, hosts: Iterable[str], origins: Iterable[str], scheme: str = "http") -> None:
        self._scheme = scheme.encode() + b"://"
        self._default_port = _DEFAULT_PORTS[scheme]
        self._hosts = frozenset(_plain(host.encode()) for host in (bound, "localhost", *hosts))
        self.origins = frozenset(origin.encode() for origin in origins)

    def refused(
        self, method: bytes, url: bytes, headers: Mapping[bytes, bytes], has_doubles: bool
    ) -> PenstockError | None:
        """Why a request is refused; None when it is not."""
        path = url.partition(b"?")[0]
        if path in PROBES:
            return None
        host = headers.get(b"host")
        if host is None or has_doubles:
            return BadRequest("host: must be sent exactly once")
        # Who has a token is no page of somebody else, and may reach the broker by any name.
        refused = None if b"authorization" in headers else self._host(host)
        return refused or self._origin(headers.get(b"origin"), host) or self._site(method, path, headers)

    def is_own_page(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether no page of another origin, of the same site or not, has sent this: only then a session counts."""
        site, origin = headers.get(b"sec-fetch-site", b"none"), headers.get(b"origin")
        return site in _OWN_SITES and (origin is None or self._is_own(origin, headers.get(b"host", b"")))

    def _host(self, host: bytes) -> PenstockError | None:
        matched = _HOST.fullmatch(host)
        if matched is None:
            return BadRequest("host: not a host name or address")
        name = _plain(matched[1])
        if name in self._hosts or name.endswith(b".localhost") or _is_address(name):
            return None
        hint = f"add it to the setting hosts, as in hosts = [{_text(name)!r}], or use the broker's IP address"
        return NotAuthorised(f"host: {_text(name)!r} is not a name of this broker", hint=hint)

    def _origin(self, origin: bytes | None, host: bytes) -> PenstockError | None:
        if origin is None or origin in self.origins or b"*" in self.origins:
            return None
        if self._is_own(origin, host):
            return None
        return NotAuthorised("origin: requests from this origin are not allowed", hint=_ORIGIN_HINT)

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        port = self._default_port
        return origin.removesuffix(port).lower() == self._scheme + host.removesuffix(port).lower()

    def _site(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes]) -> PenstockError | None:
        if headers.get(b"sec-fetch-site") != b"cross-site" or b"origin" in headers:  # which was looked at
            return None
        is_page = path in PAGES or path.startswith(b"/ui/")
        if method == b"GET" and is_page and headers.get(b"sec-fetch-mode") == b"navigate":
            return None
        return NotAuthorised("sec-fetch-site: requests from other sites are not allowed", hint=_ORIGIN_HINT)


def _plain(name: bytes) -> bytes:
    return name.lower().removesuffix(b".")


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.strip(b"[]").decode("ascii"))
    except ValueError:
        return False
    return True


def _text(name: bytes) -> str:
    return name[:100].decode("latin-1")


HEADER = b"x-forwarded-for"


class Proxies:
    """The proxies that are trusted."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def trusts(self, address: str) -> bool:
        """Whether what this peer says of others is believed."""
        return bool(self._networks) and (known := _address(address)) is not None and self._is_proxy(known)

    def client(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The address of who asks, of whom `peer` was the last to tell."""
        addresses = [text for name, value in headers if name == HEADER for text in value.decode("latin-1").split(",")]
        address = peer
        while addresses and self.trusts(address):
            before = _address(addresses.pop())
            if before is None:
                break
            address = str(before)
        return address

    def _is_proxy(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, with or without a port and brackets; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
