"""Penstock on every Python that is here and that it says it runs on.

All sources compile on each of them. A queue, a task, a broker over TCP and HTTP and the command line are used on this
one; with `PENSTOCK_DOSE=nightly` on each, in a virtualenv of its own with a plain install.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.dose import NIGHTLY, dose

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROMISED = [
    match[1]
    for classifier in PROJECT["classifiers"]
    if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier))
]
COMPILE = "import compileall, sys; sys.exit(not compileall.compile_dir(sys.argv[1], quiet=1, legacy=False, force=True))"
SMOKE = """
import asyncio, json, os, subprocess, sys, urllib.request
import penstock

with penstock.open("data") as ps:
    ps.queue("mail").push({"n": 1})
    (delivery,) = ps.queue("mail").lease()
    assert delivery.json() == {"n": 1}
    delivery.ack()

app = penstock.App.in_memory()

@app.task
def add(left: int, right: int) -> int:
    return left + right

job = add.enqueue(1, 2)
app.run_pending()
assert job.result(timeout=1) == 3

words = [sys.executable, "-m", "penstock", "serve", "--json", "--data", "served", "--auth", "off"]
words += ["--tcp-port", "0", "--http-port", "0", "--grpc-port", "off"]
with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
    try:
        urls = {name: place["url"] for name, place in json.loads(broker.stdout.readline())["addresses"].items()}
        for url in (urls["tcp"], urls["http"]):
            with penstock.connect(url) as ps:
                ps.queue("orders").push("hello")
        with urllib.request.urlopen(urls["http"] + "/readyz") as ready:
            assert ready.status == 200
        shown = subprocess.run([sys.executable, "-m", "penstock", "queues", "--json", "-u", urls["tcp"]],
                               check=True, capture_output=True)
        assert json.loads(shown.stdout)[0]["name"] == "orders"

        async def lease() -> int:
            async with penstock.aio.connect(urls["tcp"]) as ps:
                return len(await ps.queue("orders").lease(max=5))

        import penstock.aio
        assert asyncio.run(lease()) == 2
    finally:
        broker.terminate()
print("works on", sys.version.split()[0])
"""


def interpreters() -> dict[str, str]:
    """Programs by version, of those that are promised: from the path, and from pyenv."""
    found: dict[str, str] = {}
    for version in PROMISED:
        names = [shutil.which(f"python{version}") or "", *map(str, pyenv(version))]
        for name in filter(None, names):
            done = subprocess.run([name, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
                                  capture_output=True, text=True, check=False)  # fmt: skip
            if done.stdout.strip() == version:
                found[version] = name
                break
    return found


def pyenv(version: str) -> list[Path]:
    return sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))


INTERPRETERS = interpreters()


def test_this_interpreter_is_promised():
    assert "{}.{}".format(*sys.version_info) in PROMISED
    assert PROJECT["requires-python"] == f">={PROMISED[0]}"


@pytest.mark.parametrize("version", sorted(INTERPRETERS))
def test_all_sources_compile(version, tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "static"))

    done = subprocess.run([INTERPRETERS[version], "-W", "error", "-c", COMPILE, str(tmp_path / "src")],
                          capture_output=True, text=True, check=False)  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", dose(["this one"], sorted(INTERPRETERS)))
def test_it_works(version, tmp_path):
    python = installed(INTERPRETERS[version], tmp_path / "venv") if NIGHTLY else sys.executable

    done = subprocess.run([python, "-c", SMOKE], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.startswith("works on"), done.stderr


def installed(program: str, where: Path) -> str:
    """The interpreter of a new virtualenv with a plain install in it."""
    subprocess.run([program, "-m", "venv", str(where)], check=True)
    python = str(where / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, str(ROOT)], check=True)
    return python
