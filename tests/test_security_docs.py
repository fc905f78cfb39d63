"""The recipes of docs/security.md, typed in as they stand: files written, commands run, refusals seen."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from penstock.clock import SystemClock
from tests.support.broker_restarts import hold_a_port
from tests.support.issuer import claims, jwk, key_set, signed

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security.md"
REFUSED = "# refused"
END = "~~~ that was it: "
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def recipes() -> dict[str, list[tuple[str, str]]]:
    """The blocks of each recipe, with their languages."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Recipes\n")[1].split("\n## ")[0]
    titles = re.split(r"^### (.*)$", section, flags=re.MULTILINE)[1:]
    return {title: BLOCK.findall(text) for title, text in zip(titles[::2], titles[1::2], strict=True)}


RECIPES = recipes()


class Ran(NamedTuple):
    code: int
    printed: str


class Shell:
    """A bash in an empty directory, whose broker has ports of its own."""

    def __init__(self, place: Path, tcp: int, http: int) -> None:
        self.place = place
        self._ports = {":7710": f":{tcp}", ":7711": f":{http}", "queue.example.org": "localhost"}
        (place / "runtime").mkdir(mode=0o700)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        variables = clean | {
            "PATH": f"{place}:{Path(sys.executable).parent}:{clean['PATH']}",
            "HOME": str(place),
            "XDG_RUNTIME_DIR": str(place / "runtime"),
            "XDG_CONFIG_HOME": str(place / "config"),
            "PENSTOCK_URL": f"penstock://localhost:{tcp}",
        }
        self._serving = f"PENSTOCK_TCP_PORT={tcp} PENSTOCK_HTTP_PORT={http} PENSTOCK_GRPC_PORT=off"
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=place, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def here(self, text: str) -> str:
        """With the ports and the name of this machine."""
        for there, here in self._ports.items():
            text = text.replace(there, here)
        return text

    def type(self, line: str) -> Ran:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        if line.startswith("penstock serve"):
            serve = f"env -u PENSTOCK_URL {self._serving} {line.removesuffix('&')} --json"
            # Its first line says that it listens; without one it did not start.
            line = (
                f"mkfifo told; {serve} > told 2> serve.log &\nexec 3< told; read -r -u 3 || {{ cat serve.log; false; }}"
            )
        self._bash.stdin.write(f'{self.here(line)}\necho "{END}$?"\n')
        self._bash.stdin.flush()
        printed: list[str] = []
        for text in iter(self._bash.stdout.readline, ""):
            if END in text:
                before, _, code = text.partition(END)
                return Ran(int(code), "".join([*printed, before]))
            printed.append(text)
        raise AssertionError(f"bash has ended: {printed}")

    def leave(self) -> None:
        self._bash.communicate("kill $(jobs -p); wait\n", timeout=60)


@contextmanager
def shell_in(place: Path) -> Iterator[Shell]:
    rng = random.Random(str(place))
    with hold_a_port(rng) as tcp, hold_a_port(rng) as http:
        opened = Shell(place, tcp.getsockname()[1], http.getsockname()[1])
        try:
            yield opened
        finally:
            opened.leave()


def make_issuer(place: Path, toml: str) -> str:
    """An identity provider for the settings: its keys in a file, and a command that obtains a token."""
    settings = tomllib.loads(toml)
    (place / "jwks.json").write_bytes(key_set(jwk("RS256")))
    about = {"iss": settings["jwt_issuer"], "aud": settings["jwt_audience"], "penstock": ["producer:orders"]}
    command = place / "get-token"
    command.write_text(f"#!/bin/sh\necho {signed('RS256', claims(SystemClock(), **about))}\n")
    command.chmod(0o700)
    return toml.replace(settings["jwt_keys"], str(place / "jwks.json"))


def write(shell: Shell, text: str) -> None:
    name = re.match(r"# ([\w.]+)\n", text)
    assert name is not None, f"a file without a name: {text[:40]}"
    if "jwt_keys" in text:
        text = make_issuer(shell.place, text)
    (shell.place / name[1]).write_text(shell.here(text), encoding="utf-8")


def run_commands(shell: Shell, text: str) -> None:
    for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
        ran = shell.type(line)
        if line.endswith(REFUSED):
            assert ran.code != 0, line
            assert re.search(r"lacks the permission|requires client certificates", ran.printed), (line, ran.printed)
        else:
            assert ran.code == 0, (line, ran.printed)


def run_python(shell: Shell, text: str) -> None:
    def get_token() -> str:
        return subprocess.run([shell.place / "get-token"], capture_output=True, text=True, check=True).stdout.strip()

    exec(compile(shell.here(text), str(PAGE), "exec"), {"penstock": penstock, "get_token": get_token})


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works_as_it_stands(title, tmp_path):
    with shell_in(tmp_path) as shell:
        for language, text in RECIPES[title]:
            if language == "toml":
                write(shell, text)
            elif language == "console":
                run_commands(shell, text)
            elif language == "python":
                run_python(shell, text)
            else:
                assert language in ("nginx", "yaml"), f"nobody runs {language}"


def test_there_is_a_recipe_for_each_common_case():
    words = ("one machine", "behind a proxy", "Tenants", "mTLS", "JWT", "Prometheus")

    assert [word for word in words if not any(word in title for title in RECIPES)] == []
