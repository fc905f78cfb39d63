"""What users install: a wheel and a source distribution, each built, installed into an empty virtualenv, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.broker_process import Served
from tests.support.dashboard import ROOT, build_dashboard

USE = """
import penstock, sys
with penstock.open(sys.argv[1]) as ps:
    ps.queue("mail").push(b"hello")
    print(ps.queue("mail").lease(max=1)[0].payload.decode(), penstock.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_dashboard()
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(out)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtualenv with the wheel in it; the dependencies are those of this one."""
    where = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    interpreter = where / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    install = ["pip", "--python", str(interpreter), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    packages = next((where / "lib").glob("python*")) / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def clean() -> dict[str, str]:
    """An environment in which only what is installed is found."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


def test_the_wheel_and_the_source_distribution_carry_the_dashboard_and_its_name_is_free(built):
    (wheel,), (source,) = built.glob("penstock_mq-*.whl"), built.glob("penstock_mq-*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "penstock/dashboard/static/index.html" in names
    assert not [name for name in names if name.startswith(("tests/", "web/"))]
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert "src/penstock/dashboard/static/index.html" in packed
    assert not [name for name in packed if name.startswith("web/")]  # so that installing it never runs npm


def test_the_installed_wheel_works_embedded(python, tmp_path):
    done = subprocess.run(
        [str(python), "-c", USE, str(tmp_path / "data")], env=clean(), check=True, capture_output=True, text=True
    )
    said, where = done.stdout.split()
    assert said == "hello"
    assert str(python.parent.parent) in where


def test_the_installed_wheel_serves_a_broker_with_its_dashboard_and_runs_a_worker(python, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "import os, penstock\napp = penstock.App(os.environ['URL'])\n"
        "@app.task(queue='mail')\ndef double(n: int) -> int:\n    return 2 * n\n"
    )
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    flags = ("--data", "data", "--http-port", "0", "--grpc-port", "off")
    with Served(tmp_path, *flags) as broker:
        with urllib.request.urlopen(f"{broker.url('http')}/ui/") as page:
            assert b'<div id="app">' in page.read()
        url = broker.url("tcp")
        worker = subprocess.Popen(
            [str(python), "-m", "penstock", "worker", "shop:app"],
            cwd=tmp_path,
            env=clean() | {"URL": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            run = [str(python), "-c", "import shop; print(shop.double.enqueue(21).result(timeout=60))"]
            done = subprocess.run(
                run, cwd=tmp_path, env=clean() | {"URL": url}, check=True, capture_output=True, text=True
            )
        finally:
            worker.terminate()
            worker.wait()
    assert json.loads(done.stdout) == 42
