"""Listening to a network needs authentication, and TLS or a word that it is not wanted.

Loopback is this machine only. Everything else is refused unless the settings say how requests are protected on their
way: by the broker's own TLS, by that of a proxy, or not at all (`plaintext = true`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

import psutil

from penstock.config import Settings
from penstock.errors import BadSettings

PLAINTEXT: Final = "plaintext = true: requests, tokens and messages cross the network unencrypted"
REMEDIES: Final = """\
add one of these to the settings, or listen on 127.0.0.1:
  tls_certificate = "…" and tls_key = "…"            'penstock tls init' creates both files
  tls = "proxy" and trusted_proxies = ["10.0.0.7"]   a proxy at this address terminates TLS
  plaintext = true                                   anyone on the network path can read everything"""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there; a name must resolve to loopback addresses only."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def check_public_bind(settings: Settings) -> None:
    """Refuse to listen to a network without protection; the hint says what to add."""
    problems = [problem for name in ("host", "admin_host") for problem in _problems(settings, name)]
    if problems:
        raise BadSettings("\n".join(problems), hint=REMEDIES)


def _problems(settings: Settings, name: str) -> Iterator[str]:
    host = getattr(settings, name)
    if not host or is_loopback(host):
        return
    if settings.auth == "off":
        yield f"auth is 'off', and {host} can be reached from other machines: set auth = 'on'"
    if not (settings.is_seen_with_tls or settings.plaintext):
        yield f"{name}: {host} can be reached from other machines, and traffic to it is not encrypted"


def is_plaintext(settings: Settings) -> bool:
    """Whether a network carries everything unencrypted."""
    hosts = [host for host in (settings.host, settings.admin_host) if host]
    return settings.plaintext and not settings.is_seen_with_tls and not all(map(is_loopback, hosts))


def reachable_host(host: str, names: tuple[str, ...]) -> str:
    """How clients can name what listens on `host`: for all interfaces a name of the settings, or an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    if names:
        return names[0]
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    candidates = [entry.address for card in psutil.net_if_addrs().values() for entry in card if entry.family == family]
    for candidate in candidates:
        parsed = ipaddress.ip_address(candidate.partition("%")[0])
        if not (parsed.is_loopback or parsed.is_link_local):
            return candidate
    return "127.0.0.1" if address.version == 4 else "::1"
