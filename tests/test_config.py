"""Settings: three sources, one order, and every problem told at once with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config import EXPECTED, NAMES, Settings, load
from penstock.errors import BadSettings
from tests.test_docs import as_written, rows

FILE = "penstock.toml"


def problems(file: str | None = None, environment: dict[str, str] | None = None, **flags: object) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(None if file is None else (FILE, file), environment or {}, flags)
    return caught.value.message.split("\n")


def test_without_anything_the_settings_are_the_documented_defaults():
    assert load(None, {}, {}) == Settings()
    assert (Settings().tcp_port, Settings().http_port, Settings().grpc_port) == (7710, 7711, 7712)
    assert Settings().host == "127.0.0.1"


def test_the_environment_wins_over_the_file_and_flags_over_both():
    file = (FILE, 'host = "file"\ntcp_port = 1\nhttp_port = 11\n')

    settings = load(file, {"PENSTOCK_HOST": "environment", "PENSTOCK_TCP_PORT": "2"}, {"host": "flag", "data": None})

    assert (settings.host, settings.tcp_port, settings.http_port) == ("flag", 2, 11)
    assert settings.data == "./data"


def test_texts_of_the_environment_become_what_they_stand_for():
    environment = {
        "PENSTOCK_GRPC_PORT": "off",
        "PENSTOCK_HTTP_PORT": "0",
        "PENSTOCK_SYNC_MS": "2.5",
        "PENSTOCK_PROFILE": "yes",
        "PENSTOCK_CORS_ORIGINS": "https://a.example, http://b.example:8080",
        "PENSTOCK_HOSTS": "queue.example.org, penstock",
        "PENSTOCK_URL": "penstock://elsewhere",
        "OTHER": "x",
    }

    settings = load(None, environment, {})

    assert (settings.grpc_port, settings.http_port, settings.sync_ms, settings.profile) == ("off", 0, 2.5, True)
    assert settings.hosts == ("queue.example.org", "penstock")
    assert settings.cors_origins == ("https://a.example", "http://b.example:8080")


def test_every_problem_of_every_source_is_reported_at_once_with_its_place():
    found = problems(
        'data = "x"\nhttp_prot = 1\n\ntcp_port = 70000\n',
        {"PENSTOCK_DURABILTY": "os", "PENSTOCK_LOG_LEVEL": "loud", "HOME": "x"},
        drain_seconds=-1.0,
    )

    assert found == [
        "penstock.toml:2: 'http_prot' is not a setting; did you mean 'http_port'?",
        "PENSTOCK_DURABILTY is not a setting; did you mean 'PENSTOCK_DURABILITY'?",
        "penstock.toml:4: tcp_port must be a port from 1 to 65535, 0 for any free one, or 'off', not 70000",
        "PENSTOCK_LOG_LEVEL: log_level must be 'trace', 'debug', 'info', 'warning' or 'error', not 'loud'",
        "--drain-seconds: drain_seconds must be seconds from 0 to 3600, not -1.0",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jwt_issuer", " "),
        ("jwt_audience", 7),
        ("jwt_keys", ""),
        ("jwt_keys", "http://issuer.example/keys"),
        ("jwt_keys", "file:///keys.json"),
        ("jwt_keys", "HTTPS://issuer.example/keys"),
        ("jwt_keys", "https://"),
        ("jwt_keys", "https://issuer.example/my keys"),
        ("jwt_grants_claim", ""),
        ("data", ""),
        ("data_mode", "0755"),
        ("data_mode", 0o750),
        ("data_mode", "0640"),
        ("host", 7),
        ("tcp_port", "on"),
        ("tcp_port", 1.5),
        ("http_port", True),
        ("http_port", -1),
        ("durability", "fast"),
        ("sync_ms", 0),
        ("sync_ms", float("nan")),
        ("log_format", "xml"),
        ("hosts", ["http://example.org"]),
        ("hosts", "example.org:80"),
        ("trusted_proxies", ["proxy.example.org"]),
        ("trusted_proxies", "10.0.0.0/33"),
        ("log_levels", ["storage"]),
        ("log_levels", "storage=loud"),
        ("log_levels", "penstock storage=debug"),
        ("cors_origins", ["example.org"]),
        ("cors_origins", "https://example.org/path"),
        ("request_bytes_max", 1),
        ("connections_max", 0),
        ("drain_seconds", float("inf")),
        ("profile", "perhaps"),
        ("profile", 1),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_would_be_right(name, value):
    (problem,) = problems(**{name: value})

    assert problem.startswith(f"--{name.replace('_', '-')}: {name} must be {EXPECTED[name]}, not ")


def test_a_file_that_is_not_toml_says_where():
    (problem,) = problems("host = \n")

    assert problem.startswith("penstock.toml: not TOML: ")
    assert "line 1" in problem


def test_two_listeners_cannot_have_one_port_and_one_must_be_on():
    assert problems(tcp_port=80, http_port=80) == ["tcp_port and http_port are both 80: each needs a port of its own"]
    (problem,) = problems(tcp_port="off", http_port="off", grpc_port="off")
    assert "all 'off'" in problem
    assert load(None, {}, {"tcp_port": 0, "http_port": 0, "grpc_port": 0}).tcp_port == 0


def test_every_setting_is_documented_with_its_default():
    documented = {name: cells[0] for name, cells in rows("docs/configuration.md").items()}

    assert documented == {field.name: as_written(field.default) for field in msgspec.structs.fields(Settings)}
    assert set(EXPECTED) == set(NAMES)


def test_the_file_in_the_documentation_is_a_good_one():
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    text = page.split("```toml\n")[1].split("```")[0]

    assert load((FILE, text), {}, {}).grpc_port == "off"


def test_jwt_settings_are_complete_or_absent():
    some: dict[str, Any] = {"jwt_issuer": "https://issuer.example", "jwt_audience": "penstock", "jwt_keys": "keys.json"}

    assert load(None, {}, some).jwt_grants_claim == "penstock"
    assert load(None, {}, some | {"jwt_keys": "https://issuer.example/keys"}).jwt_keys == "https://issuer.example/keys"
    assert problems(jwt_issuer="x") == ["JWTs need jwt_audience and jwt_keys too"]
    for name in some:
        assert problems(**{key: value for key, value in some.items() if key != name}) == [f"JWTs need {name} too"]


def test_the_password_of_a_url_is_not_repeated():
    (found,) = problems(jwt_keys="https://user:canary@issuer.example/keys")

    assert found.endswith("not 'https://•••@issuer.example/keys'")
    assert "canary" not in found
