"""The files in deploy/: what they name exists, and the tools that read them accept them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from penstock import config
from penstock.cli.app import app
from penstock.model import Outcome
from penstock.model_tasks import TaskState
from penstock.refusals import likeness
from tests.support.dose import NIGHTLY
from tests.test_docs import text_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
ALERTS = DEPLOY / "monitoring" / "alerts.yaml"
GRAFANA = DEPLOY / "monitoring" / "grafana-dashboard.json"
KUBERNETES = "1.30"
# Those of clients, which a broker's settings do not know.
CLIENT_VARIABLES = {"PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE", "PENSTOCK_TLS_CA", "PENSTOCK_CONTEXT"}


def files() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_variable_is_a_setting(path):
    names = set(re.findall(r"\bPENSTOCK_[A-Z_]+\b", path.read_text()))
    settings = {f"PENSTOCK_{name.upper()}" for name in config.Settings.__struct_fields__} | CLIENT_VARIABLES

    assert names <= settings, [likeness(name, sorted(settings)) for name in names - settings]


# commands


def checked_command(words: list[str]) -> None:
    """Words of a command line that the command line takes; nothing is run."""
    command: Any = get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    assert not getattr(command, "commands", {}), f"{words} is no command"
    command.make_context("penstock", rest, resilient_parsing=False)


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists_and_gives_it_time_to_stop(path):
    service = unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])

    assert program.endswith("/bin/penstock")
    checked_command(words)
    assert service["User"] != "root"
    needed = 60 if "worker" in words else config.Settings().drain_seconds
    assert int(service["TimeoutStopSec"]) > needed


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path, tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:  # elsewhere its sections and keys are looked at
        assert set(unit(path).sections()) == {"Unit", "Service", "Install"}
        return
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    copy = tmp_path / path.name.replace("@.", "@1.")
    copy.write_text(re.sub(r"/srv/\w+/bin/penstock", str(program), path.read_text()))
    done = subprocess.run([tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if copy.name in line or "penstock" in line]

    assert about_it == []


# Kubernetes


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(path):
    found = documents(path)

    assert [document["kind"] for document in found] == ["Service", "StatefulSet", "Deployment"]
    for document in found:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_containers_run_commands_that_exist_on_the_ports_of_the_service(path):
    service, broker, worker = documents(path)
    (container,) = broker["spec"]["template"]["spec"]["containers"]
    (runs,) = worker["spec"]["template"]["spec"]["containers"]

    checked_command(container["args"])
    assert runs["command"][0] == "penstock"
    checked_command(runs["command"][1:])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    defaults = config.Settings()
    assert ports == {"tcp": defaults.tcp_port, "http": defaults.http_port, "grpc": defaults.grpc_port}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert broker["spec"]["replicas"] == 1
    assert service["spec"]["selector"] == broker["spec"]["template"]["metadata"]["labels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in broker["spec"]["template"]["spec"]["volumes"]}
    assert mounted == volumes | {claim["metadata"]["name"] for claim in broker["spec"]["volumeClaimTemplates"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/readyz", "/livez")
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"  # as its certificate says


# Docker


def instructions(path: Path) -> list[tuple[str, str]]:
    """The lines of a Dockerfile, continued ones joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, value.strip()) for name, _, value in (line.partition(" ") for line in lines)]


def test_the_dockerfile_keeps_the_usual_rules():
    found = instructions(DEPLOY / "docker" / "Dockerfile")
    names = [name for name, _ in found]
    values = dict(found)

    assert set(names) <= {
        "FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    for name, value in found:
        if name == "FROM":
            assert re.fullmatch(r"[\w/]+:\d[\w.-]+(?: AS \w+)?", value), f"{value} has no version"
        if name == "COPY" and not value.startswith("--from"):
            *sources, _ = value.split()
            assert all((ROOT / source).exists() for source in sources)
        if name == "RUN" and "pip " in value:
            assert "--no-cache-dir" in value
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(value), list)  # no shell between a signal and the broker
    assert values["USER"] == "penstock"
    assert names.index("USER") > max(index for index, name in enumerate(names) if name == "RUN")
    assert names.count("CMD") == names.count("ENTRYPOINT") == 1
    checked_command([*json.loads(values["ENTRYPOINT"])[1:], *json.loads(values["CMD"])])
    defaults = config.Settings()
    assert values["EXPOSE"].split() == [
        str(port) for port in (defaults.tcp_port, defaults.http_port, defaults.grpc_port)
    ]
    extras = re.search(
        r"\[([\w,]+)\]", next(value for name, value in found if name == "RUN" and "install" in value and "whl" in value)
    )
    assert extras is not None
    assert set(extras[1].split(",")) <= set(
        re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    )


def test_what_docker_does_not_need_is_not_sent_to_it():
    ignored = (ROOT / ".dockerignore").read_text().split()

    assert {".git", ".venv", "data", "web/node_modules"} <= set(ignored)


# metrics


def metrics() -> dict[str, set[str]]:
    """Metrics and their labels, as docs/metrics.md has them: a test compares that page with a broker."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) ?\|", text_of("docs/metrics.md"), re.MULTILINE
    ):
        own = {label.strip() for label in labels.split(",") if label.strip()}
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {f"{name}{suffix}": own | ({"le"} if suffix == "_bucket" else set()) for suffix in suffixes}
    return found


VALUES = {
    "outcome": {outcome.name.lower() for outcome in Outcome} | {"completed", "failed", "limited", "ok"},
    "state": {"alive", "stuck", "stopping", "dead"} | set(TaskState),
}
OF_PROMETHEUS = {"instance", "job"}


def check_expression(expression: str, labels_used: set[str]) -> None:
    known = metrics()
    names = set(re.findall(r"\b(?:penstock|process)_\w+", expression))
    assert names <= known.keys(), names - known.keys()
    for name, matchers in re.findall(r"\b((?:penstock|process)_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', matchers):
            assert label in known[name] | OF_PROMETHEUS, f"{name} has no label {label}"
            if label in VALUES and "$" not in value:
                assert set(value.split("|")) <= VALUES[label]
    grouped = {
        label.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in group.split(",")
    }
    everything = OF_PROMETHEUS.union(*(known[name] for name in names)) if names else OF_PROMETHEUS
    assert grouped <= everything, grouped - everything
    kept = grouped if re.match(r"(?:max|sum|histogram_quantile)\b", expression) and grouped else everything
    assert labels_used <= kept, f"{expression} has no {labels_used - kept}"


def rules() -> Iterator[Any]:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from group["rules"]


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule["alert"])
def test_alerts_use_metrics_and_labels_that_exist(rule):
    texts = " ".join(rule["annotations"].values())

    check_expression(rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts)))
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def targets() -> list[tuple[str, str]]:
    dashboard = json.loads(GRAFANA.read_text())
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize(("expression", "legend"), targets())
def test_panels_use_metrics_and_labels_that_exist(expression, legend):
    check_expression(expression, set(re.findall(r"\{\{(\w+)\}\}", legend)))


def test_panels_do_not_overlap_and_have_their_own_ids():
    panels = json.loads(GRAFANA.read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"].endswith(".") for panel in panels)


def test_variables_of_the_dashboard_ask_for_metrics_that_exist():
    for variable in json.loads(GRAFANA.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)", variable["query"])
            assert match is not None
            assert match[2] in metrics()[match[1]] | OF_PROMETHEUS


def promtool(folder: Path) -> str | None:
    """The tool of Prometheus: that of the system, or nightly the one of Debian, without installing its server."""
    found = shutil.which("promtool")
    if found or not NIGHTLY or shutil.which("apt-get") is None:
        return found
    subprocess.run(["apt-get", "download", "--quiet", "prometheus"], cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "root")], check=True)
    return str(folder / "root" / "usr" / "bin" / "promtool")


def test_prometheus_accepts_the_rules_where_its_tool_is(tmp_path):
    tool = promtool(tmp_path)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
    if tool is not None:
        done = subprocess.run([tool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
