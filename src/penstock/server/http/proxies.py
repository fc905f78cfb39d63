"""Who is behind a request: the address of the peer, or the one that trusted proxies name.

`X-Forwarded-For` is a list to which each proxy adds whom it heard from. Anybody may begin such a list, so it is read
from its end, and only as far as each next address was told by one that is trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

HEADER = b"x-forwarded-for"


class Proxies:
    """The proxies that are trusted."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(each, strict=False) for each in networks]

    def trusts(self, address: str) -> bool:
        """Whether what this peer says of others is believed."""
        return bool(self._networks) and (known := _address(address)) is not None and self._is_proxy(known)

    def client(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The address of who asks, of whom `peer` was the last to tell."""
        told = [each for name, value in headers if name == HEADER for each in value.decode("latin-1").split(",")]
        address = peer
        while told and self.trusts(address):
            before = _address(told.pop())
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
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
