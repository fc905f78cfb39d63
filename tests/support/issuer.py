"""An issuer of JWTs for tests: keys of every kind, key sets, and tokens signed with them."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from penstock.clock import Clock

ISSUER, AUDIENCE = "https://issuer.example", "penstock-test"
SECRET = b"canary-secret-" + b"x" * 32


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@cache
def private_key(kind: str) -> Any:
    """A key that signs; `RS256-short` and `ES384` are those that the broker does not take."""
    made = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "RS256-other": lambda: rsa.generate_private_key(65537, 2048),
        "RS256-short": lambda: rsa.generate_private_key(65537, 1024),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
        "HS256": lambda: SECRET,
    }
    return made[kind]()


def jwk(kind: str, **fields: Any) -> dict[str, Any]:
    """The entry of a key set; a field that is None is left out."""
    entry: dict[str, Any]
    if kind == "HS256":
        entry = {"kty": "oct", "k": encoded(SECRET)}
    else:
        algorithm = jwt.get_algorithm_by_name(kind.partition("-")[0])
        entry = json.loads(algorithm.to_jwk(private_key(kind).public_key()))
        entry.pop("key_ops", None)
    entry |= {"kid": kind, **fields}
    return {name: value for name, value in entry.items() if value is not None}


def key_set(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


def claims(clock: Clock, **fields: Any) -> dict[str, Any]:
    """Claims of a token that is valid for an hour; a field that is None is left out."""
    now = clock.now() // 1_000_000
    known = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 3600, "penstock": ["push:orders"]}
    return {name: value for name, value in (known | fields).items() if value is not None}


def signed(kind: str, payload: Any, **headers: Any) -> str:
    """A token; a header that is None is left out."""
    known = {"alg": kind.partition("-")[0], "typ": "JWT", "kid": kind} | headers
    header = {name: value for name, value in known.items() if value is not None}
    text = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(payload).encode())}"
    algorithm = jwt.get_algorithm_by_name(kind.partition("-")[0])
    return f"{text}.{encoded(algorithm.sign(text.encode(), algorithm.prepare_key(private_key(kind))))}"
