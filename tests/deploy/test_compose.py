"""compose.yaml without Docker: the files that the image copies make a wheel, and its services run as processes.

The commands and the environment are those of compose.yaml, from an empty virtualenv with that wheel in it. What a
container would give them (the names of hosts, the mounts, the ports) is put in their place.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploy_files import DEPLOY, ROOT, checked_command, instructions
from tests.support.dashboard import build_dashboard
from tests.support.postgres import PostgresServer

COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`penstock` of a virtualenv that has the wheel which the first stage of the Dockerfile makes."""
    build_dashboard()
    source, where = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("image")
    for name, value in instructions(DEPLOY / "docker" / "Dockerfile"):
        if name == "COPY" and not value.startswith("--from"):
            *paths, target = value.split()
            copy_into(source, paths, target)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    words = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(where), str(source)]
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
    (wheel,) = where.glob("*.whl")
    install = ["pip", "--python", str(where / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, "-m", *install, str(wheel)], check=True, capture_output=True)
    packages = next((where / "lib").glob("python*")) / "site-packages"
    dependencies = sysconfig.get_path("purelib")
    (packages / "dependencies.pth").write_text(f"import site; site.addsitedir({dependencies!r})\n")
    return where / "bin"


def copy_into(source: Path, paths: list[str], target: str) -> None:
    skipped = shutil.ignore_patterns("node_modules", "__pycache__")
    for path in paths:
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / target, ignore=skipped)
        else:
            shutil.copy(ROOT / path, source / target)


class Machine:
    """The places of the containers on this machine."""

    def __init__(self, programs: Path, folder: Path, store: str) -> None:
        self.programs, self.folder = programs, folder
        self.places = {
            "postgresql://penstock@postgres/penstock": store,
            "/run/secrets/store_password": str(folder / "store_password"),
            "/data": str(folder / "data"),
            "/keys": str(folder / "keys"),
            "/app": str(folder / "app"),
        }
        for name in ("data", "keys", "app"):
            (folder / name).mkdir(mode=0o700)
        (folder / "store_password").write_text("unused")
        (folder / "store_password").chmod(0o600)
        shutil.copy(DEPLOY / "docker" / "shop.py", folder / "app")

    def local(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def environment(self, name: str) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PENSTOCK_", "PYTHON", "XDG_"))}
        given = SERVICES[name].get("environment", {})
        image = {
            "PENSTOCK_DATA": self.local("/data"),
            "PATH": f"{self.programs}:{clean['PATH']}",
            "HOME": str(self.folder),
        }
        return clean | image | {key: self.local(str(value)) for key, value in given.items()}

    def words(self, name: str) -> list[str]:
        entry = SERVICES[name].get("entrypoint", ["penstock"])
        return [self.local(word) for word in [*entry, *SERVICES[name]["command"]]]


@contextmanager
def running(words: list[str], environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def test_the_services_work_together(program: Path, postgres: PostgresServer, tmp_path: Path):
    machine = Machine(program, tmp_path, postgres.new_database())
    ports = ["--json", "--tcp-port", "0", "--http-port", "0", "--grpc-port", "0"]
    with ExitStack() as stack:
        broker = stack.enter_context(
            running([*machine.words("broker"), *ports], machine.environment("broker"), tmp_path)
        )
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        assert ready.startswith('{"'), ready + (tmp_path / "log").read_text()
        port = json.loads(ready)["addresses"]["tcp"]["port"]
        owner = machine.environment("key") | {"PENSTOCK_URL": f"penstock://127.0.0.1:{port}"}
        # The health check, and the step that creates the key, twice: compose starts it with every `up`.
        healthy = subprocess.run(SERVICES["broker"]["healthcheck"]["test"][1:], env=owner, check=False)
        assert healthy.returncode == 0
        for _ in range(2):
            subprocess.run(machine.words("key"), env=owner, check=True)
        key = tmp_path / "keys" / "worker"
        assert key.stat().st_mode & 0o077 == 0
        machine.places["broker:7710"] = f"127.0.0.1:{port}"
        machine.places["penstock://broker:7710"] = f"penstock://127.0.0.1:{port}"
        stack.enter_context(running(machine.words("worker"), machine.environment("worker"), tmp_path / "app"))
        words = ["penstock", "enqueue", "shop:app.greet", "Ann", "--wait", "60s"]
        done = subprocess.run(words, env=owner, cwd=tmp_path / "app", check=False, capture_output=True, text=True)
        logs = [(folder / "log").read_text() for folder in (tmp_path, tmp_path / "app")]
        assert done.returncode == 0, "\n".join([done.stderr, *logs])

    assert json.loads(done.stdout) == "hello Ann"


def test_services_wait_for_what_they_need_and_name_what_is_declared():
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "docker" / source).is_file(), (name, volume)
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        if service.get("image") == "penstock" and "entrypoint" not in service:
            checked_command(service["command"])
    assert (DEPLOY / "docker" / SERVICES["broker"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / SERVICES["broker"]["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["broker"]["ports"])
