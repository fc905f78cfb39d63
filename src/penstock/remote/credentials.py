"""What a client shows to be let in: a token, or a proof of the key that a broker of the same user has for this run.

The first of these counts: `token=` (text, or a function that returns it), `PENSTOCK_TOKEN`, `PENSTOCK_TOKEN_FILE`, the
entry that the broker at exactly this loopback address wrote for its owner (access/discovery.py). Functions, files and
entries are read for every connection, so that a token can be replaced while a client runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Final

from penstock.access.discovery import BROKER, CLIENT, Entry, find, new_nonce, place_of
from penstock.errors import NotAuthenticated
from penstock.remote import request as asking
from penstock.remote.producer import Producer
from penstock.remote.request import Request
from penstock.remote.settings import FILE_IN_ENVIRONMENT, IN_ENVIRONMENT, Address, checked_token, token_of_file
from penstock.wire.requests import Welcome

Token = str | Callable[[], str] | None
_LOCALHOST: Final = ("127.0.0.1", "::1")


def current_token(token: Token) -> str:
    """The token to send now; empty when there is none."""
    if callable(token):
        return checked_token(token())
    if token:
        return token
    text = os.environ.get(IN_ENVIRONMENT, "")
    if text:
        return checked_token(text.strip(), IN_ENVIRONMENT)
    path = os.environ.get(FILE_IN_ENVIRONMENT, "")
    return token_of_file(path, FILE_IN_ENVIRONMENT) if path else ""


def _entry_at(address: Address) -> tuple[Entry | None, str]:
    """The entry of the broker at an address, and how both sides write that address."""
    for host in _LOCALHOST if address.host == "localhost" else (address.host,):
        entry = find(host, address.port, os.environ)
        if entry is not None:
            return entry, place_of(host, address.port)
    return None, ""


def login(
    client: str, token: str, address: Address, producer: Producer | None, *, has_certificate: bool = False
) -> Generator[Request, Welcome, str]:
    """The requests that begin a connection, one after the other: each is sent the reply of the one before.

    A client that shows a certificate of its own is whom that stands for, not the owner of this run. Returns the token
    for requests over HTTP, which stand alone.
    """
    entry, place = (None, "") if token or has_certificate else _entry_at(address)
    if entry is None:
        yield asking.hello(client, producer, token=token)
        return token
    nonce = new_nonce()
    welcome = yield asking.hello(client, None, challenge=nonce)
    if not entry.is_proof(welcome.proof, BROKER, nonce, welcome.challenge, place):
        raise NotAuthenticated(
            f"the server at {address} is not the broker that you started there",
            hint="restart your broker, or pass a key of that server as token= or PENSTOCK_TOKEN",
        )
    proof = entry.proof(CLIENT, nonce, welcome.challenge, place)
    welcome = yield asking.hello(client, producer, answered=welcome.challenge, proof=proof)
    return welcome.token
