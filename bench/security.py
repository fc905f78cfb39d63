"""`python -m bench.security`: what access control, JWTs, TLS and encryption cost, each beside the same without it.

Two brokers run at a time, one with the feature and one without; both do the same work in turns: without, with, without.
The ratio is the median over the triples of the CPU time that the broker spends on a message. Beside it stands the
spread of the broker without the feature against itself: a difference within it is not resolvable.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import math
import os
import random
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import mean, median, quantiles, variance
from typing import Any

import uvloop

import penstock
from bench.compare_work import cpu_of
from bench.measure import directory
from bench.server.over_http import request
from bench.server.process import Running, broker
from bench.server.tls import tls_options
from penstock import aio
from penstock.access.authenticator import Authenticator
from penstock.access.certificates import CA
from penstock.access.discovery import new_entry
from penstock.access.keys import make_key
from penstock.access.store import AccessStore
from penstock.clock import SystemClock
from penstock.errors import NotAuthenticated

PAYLOAD = b"x" * 100
AT_A_TIME = 64
CONNECTIONS = 16
Measure = Callable[[], float]  # seconds of CPU per message


def compared(row: str, without: Measure, feature: Measure, pairs: int) -> dict[str, Any]:
    """The median ratio of the feature to the same without it, and the spread of the latter."""
    ratios, same, figures = [], [], []
    for _ in range(pairs):
        first, costly, second = without(), feature(), without()
        ratios.append(costly * 2 / (first + second))
        same.append(second / first)
        figures.append(first)
    low, _, high = quantiles(same, n=4)
    return {
        "row": row,
        "us_without": round(median(figures) * 1e6, 2),
        "ratio": round(median(ratios), 3),
        "same_quartiles": [round(low, 3), round(high, 3)],
    }


def cpu_per_message(served: Running, count: int, work: Callable[[], object]) -> float:
    began = cpu_of(served.pid)
    work()
    return (cpu_of(served.pid) - began) / count


def push_at_a_time(served: Running, count: int, **options: Any) -> Callable[[], object]:
    """Single pushes over one TCP connection, 64 under way."""

    async def run() -> None:
        async with aio.connect(options.pop("url", served.url), **options) as ps:
            push, left = ps.queue("bench").push, iter(range(count))

            async def worker() -> None:
                for _ in left:
                    await push(PAYLOAD)

            await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))

    return lambda: uvloop.run(run())


def post(port: int, data: bytes, count: int) -> None:
    """The same HTTP request again and again, over 16 connections."""

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count // CONNECTIONS):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201"), head
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))

    uvloop.run(clients())


def access_control(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    with broker("--durability", "os") as plain, broker("--durability", "os", "--auth", "on") as guarded:
        yield compared(
            "access control: TCP, 64 pushes at a time",
            lambda: cpu_per_message(plain, count, push_at_a_time(plain, count)),
            lambda: cpu_per_message(guarded, count, push_at_a_time(guarded, count)),
            pairs,
        )


def jwt(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    with directory() as folder:
        secret = os.urandom(32)
        keys = {"keys": [{"kty": "oct", "kid": "k", "alg": "HS256", "k": _base64(secret)}]}
        (folder / "jwks.json").write_text(json.dumps(keys))
        (folder / "jwks.json").chmod(0o600)
        options = ("--jwt-issuer", "bench", "--jwt-audience", "penstock", "--jwt-keys", str(folder / "jwks.json"))
        data = request([b'"' + PAYLOAD + b'"'])
        shown = data.replace(b"\r\n", f"\r\nAuthorization: Bearer {_token(secret)}\r\n".encode(), 1)
        with broker("--durability", "os") as plain, broker("--durability", "os", "--auth", "on", *options) as guarded:
            yield compared(
                "a JWT over HTTP, once verified: one JSON message",
                lambda: cpu_per_message(plain, count, lambda: post(plain.port("http"), data, count)),
                lambda: cpu_per_message(guarded, count, lambda: post(guarded.port("http"), shown, count)),
                pairs,
            )


def tls(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    with (
        directory() as folder,
        broker("--durability", "os") as plain,
        broker("--durability", "os", *tls_options(folder)) as secure,
    ):
        ca = str(folder / CA)
        url = f"penstocks://127.0.0.1:{secure.port('tcp')}"
        yield compared(
            "TLS: TCP, 64 pushes at a time",
            lambda: cpu_per_message(plain, count, push_at_a_time(plain, count)),
            lambda: cpu_per_message(secure, count, push_at_a_time(secure, count, url=url, tls_ca=ca)),
            pairs,
        )


def encryption(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    """Embedded, in batches of 1,000: what a push and a lease take of this process."""
    with directory() as folder:
        master = folder / "master.key"
        subprocess.run([sys.executable, "-m", "penstock", "encryption", "init", str(master)], check=True)
        with penstock.open(folder / "data", durability="os", master_key=str(master)) as ps:
            queues = {flag: ps.create_queue(f"bench-{flag}", encryption=flag) for flag in (False, True)}
            batch = [PAYLOAD] * 1_000

            def push(flag: bool) -> float:
                began = time.process_time()
                for _ in range(count // 1_000):
                    queues[flag].push_many(batch)
                return (time.process_time() - began) / count

            def lease(flag: bool) -> float:
                queues[flag].purge()
                push(flag)
                began = time.process_time()
                for _ in range(count // 1_000):
                    queues[flag].lease(1_000).ack()
                return (time.process_time() - began) / count

            for name, work in (("push_many of 1,000", push), ("lease(1000), ack", lease)):
                yield compared(f"encryption: {name}", partial(work, False), partial(work, True), pairs)


def start(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    """Seconds until a broker is ready, by the clock."""

    def seconds(*options: str) -> float:
        began = time.perf_counter()
        with broker(*options):
            return time.perf_counter() - began

    yield compared("start of a broker, seconds by the clock", seconds, partial(seconds, "--auth", "on"), pairs)


def wrong_keys(pairs: int, count: int) -> Iterator[dict[str, Any]]:
    """Whether the time that a wrong key takes says something about the right one: Welch's t over the tries."""
    store = AccessStore(None, SystemClock())
    record, key = store.create_key("bench", ["push:*"])
    authenticator = Authenticator(store, SystemClock(), new_entry())
    wrong = {
        "near": key[:-1] + ("A" if key[-1] != "A" else "B"),
        "far": f"penstock_{record.id}_{'z' * 43}",
        "unknown": make_key().text,
    }
    times: dict[str, list[int]] = {name: [] for name in wrong}
    tries = [*wrong.items()] * count
    random.shuffle(tries)
    for name, token in tries:
        began = time.perf_counter_ns()
        with suppress(NotAuthenticated):
            authenticator.by_token(token)
        times[name].append(time.perf_counter_ns() - began)
    for name in ("near", "unknown"):
        t = _welch(times[name], times["far"])
        yield {"row": f"a wrong key, {name} against far", "t": round(t, 2), "tries": count}


def _welch(one: list[int], other: list[int]) -> float:
    """Without the slowest tenth of each, which the rest of the machine caused."""
    one, other = (sorted(times)[: len(times) * 9 // 10] for times in (one, other))
    return (mean(one) - mean(other)) / math.sqrt(variance(one) / len(one) + variance(other) / len(other))


def _token(secret: bytes) -> str:
    now = int(time.time())
    claims = {"iss": "bench", "aud": "penstock", "sub": "bench", "iat": now, "exp": now + 3600, "penstock": ["push:*"]}
    parts = [_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "k", "typ": "JWT"}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{_base64(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


ROWS = {
    "auth": access_control,
    "jwt": jwt,
    "tls": tls,
    "encryption": encryption,
    "start": start,
    "wrong-keys": wrong_keys,
}


def main() -> None:
    """Measure the rows, and print each as it comes."""
    parser = argparse.ArgumentParser(prog="python -m bench.security", description="What security costs.")
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="default: all")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--messages", type=int, default=50_000)
    given = parser.parse_args()
    for name in given.rows or ROWS:
        for figures in ROWS[name](given.pairs, given.messages):
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
