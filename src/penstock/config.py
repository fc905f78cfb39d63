"""Settings of a broker: from a file, the environment and flags, in that order, the later winning.

Everything is looked at before anything is refused: `load` answers with settings or raises `BadSettings`, which has
every problem on a line, each with its key, its source and what would be right. Nothing here reads a file or the
environment: the command line hands both over.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from penstock import limits
from penstock.errors import BadSettings
from penstock.model import Durability, is_mode, is_store_url
from penstock.refusals import suggestion
from penstock.urls import has_secret, masked

Port = int | Literal["off"]
LogFormat = Literal["auto", "json", "console"]
AuditMode = Literal["auto", "on", "off"]
LogLevel = Literal["trace", "debug", "info", "warning", "error"]
Tls = Literal["off", "on", "proxy"]
TlsClient = Literal["optional", "required"]
TlsMinimum = Literal["1.3", "1.2"]
DashboardColor = Literal["", "green", "blue", "amber", "red"]

FILE_NAME: Final = "penstock.toml"
ENVIRONMENT_PREFIX: Final = "PENSTOCK_"
# Read by the test suite and by clients, not by the broker.
ENVIRONMENT_FOREIGN: Final = frozenset(
    f"PENSTOCK_{name}"
    for name in (
        *("CONFIG", "URL", "TOKEN", "TOKEN_FILE", "CONTEXT", "CONTEXTS", "DOSE"),
        *("TLS_CA", "TLS_CLIENT_CERTIFICATE", "TLS_CLIENT_KEY"),
    )
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a broker, as docs/configuration.md lists them."""

    data: str = "./data"
    data_mode: str = "0700"
    store: str = ""
    store_password_file: str = ""
    node: str = ""
    advertise: str = ""
    deployment: str = ""
    replicated: bool = False
    host: str = "127.0.0.1"
    auth: Literal["on", "off"] = "on"
    tcp_port: Port = 7710
    http_port: Port = 7711
    grpc_port: Port = 7712
    admin_port: Port = "off"
    admin_host: str = ""  # as host
    durability: Durability = "fsync"
    sync_ms: float = 50.0
    journal_file_bytes: int = limits.journal_file_bytes
    journal_file_frames: int = limits.journal_file_frames_max
    journal_file_seconds: float = 0.0
    compaction_seconds: float = 10.0
    sealing: bool = True
    task_retention_seconds: float = limits.task_retention_seconds
    task_result_bytes_max: int = limits.task_result_bytes_max
    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"
    log_levels: tuple[str, ...] = ()
    audit: AuditMode = "auto"
    slow_request_ms: float = 1000.0
    hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    http_prefix: str = ""
    dashboard_read_only: bool = False
    dashboard_environment: str = ""
    dashboard_color: DashboardColor = ""
    tls: Tls = "off"
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_client: TlsClient = "optional"
    tls_minimum: TlsMinimum = "1.3"
    plaintext: bool = False
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_keys: str = ""
    jwt_grants_claim: str = "penstock"
    master_key: str = ""
    kms_command: str = ""
    segments: str = ""
    segments_cache_bytes: int = limits.segments_cache_bytes_default
    backups: tuple[str, ...] = ()
    request_bytes_max: int = limits.frame_bytes_max
    frame_bytes_max: int = limits.frame_bytes_max
    connections_max: int = limits.connections_max
    drain_seconds: float = 10.0
    history: bool = True
    profile: bool = False

    @property
    def speaks_tls(self) -> bool:
        """Whether the broker itself speaks TLS on its ports."""
        return self.tls == "on" or bool(self.tls_certificate)

    @property
    def is_seen_with_tls(self) -> bool:
        """Whether clients connect with TLS: to the broker, or to a proxy before it."""
        return self.speaks_tls or self.tls == "proxy"


NAMES: Final = Settings.__struct_fields__

# What a setting must be: the end of an error.
EXPECTED: Final = {
    "data": "the path of a directory",
    "data_mode": 'a mode in quotes such as "0700" or "0750", without access for others',
    "store": "a URL such as 'postgresql://penstock@db1,db2/penstock'",
    "store_password_file": "the path of a file with the password of the store, readable only by its owner",
    "node": "a name for this node: letters, digits, '.', '_', ':' or '-', at most 50",
    "advertise": "a name or an address by which clients reach this node, without a port",
    "deployment": "the name of the deployment that the store belongs to",
    "replicated": "true or false",
    "host": "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them",
    "auth": "'on', or 'off' on a loopback address",
    "tcp_port": "a port from 1 to 65535, 0 for any free one, or 'off'",
    "http_port": "a port from 1 to 65535, 0 for any free one, or 'off'",
    "grpc_port": "a port from 1 to 65535, 0 for any free one, or 'off'",
    "admin_port": "a port from 1 to 65535, 0 for any free one, or 'off'",
    "admin_host": "an address of this machine, such as 127.0.0.1",
    "durability": "'fsync', 'interval' or 'os'",
    "sync_ms": "milliseconds from 1 to 60000",
    "journal_file_bytes": f"bytes from {limits.journal_file_bytes_range[0]} to {limits.journal_file_bytes_range[1]}",
    "journal_file_frames": "a number from {} to {}".format(*limits.journal_file_frames_range),
    "journal_file_seconds": "seconds from 0, for never, to 3162240000",
    "compaction_seconds": "seconds from 0.1 to 86400",
    "sealing": "true or false",
    "task_retention_seconds": "seconds from 0 to 3162240000",
    "task_result_bytes_max": "bytes from {} to {}".format(*limits.task_result_bytes_range),
    "log_format": "'auto', 'json' or 'console'",
    "log_level": "'trace', 'debug', 'info', 'warning' or 'error'",
    "log_levels": "components with their levels such as 'storage=debug'",
    "audit": "'auto', 'on' or 'off'",
    "slow_request_ms": "milliseconds from 0 to 3600000",
    "hosts": "names of this broker such as 'queue.example.org', without a port",
    "trusted_proxies": "addresses or networks such as '10.0.0.7' or '10.0.0.0/8'",
    "cors_origins": "origins such as 'https://example.org', or '*'",
    "http_prefix": "a path such as '/penstock', without a slash at its end",
    "dashboard_read_only": "true or false",
    "dashboard_environment": "a label of at most 24 characters, such as 'production'",
    "dashboard_color": "'green', 'blue', 'amber' or 'red'",
    "tls": "'off', 'on', or 'proxy' when a proxy in front of the broker terminates TLS",
    "tls_certificate": "the path of a PEM certificate, with its chain",
    "tls_key": "the path of the certificate's PEM key",
    "tls_client_ca": "the path of the PEM certificates of the CA that signs client certificates",
    "tls_client": "'optional' or 'required'",
    "tls_minimum": "'1.3' or '1.2'",
    "plaintext": "true or false",
    "jwt_issuer": "the iss claim of tokens, such as 'https://login.example.org'",
    "jwt_audience": "the aud claim of tokens: the name of this broker at the issuer",
    "jwt_keys": "the path of a JWKS file, or an https URL without a password",
    "jwt_grants_claim": "the name of the claim that holds the grants",
    "backups": "absolute paths, or URLs such as 's3://bucket/path'",
    "master_key": "the path of a key file, created by `penstock encryption init`",
    "kms_command": "a command that wraps and unwraps keys",
    "segments": "a URL such as 's3://bucket/prefix' without credentials, the path of a directory, or 'local'",
    "segments_cache_bytes": f"bytes from 0 to {limits.segments_cache_bytes_max}",
    "request_bytes_max": f"bytes from 1024 to {limits.request_bytes_max}",
    "frame_bytes_max": f"bytes from 1024 to {limits.request_bytes_max}",
    "connections_max": "a number from 1 to 1000000",
    "drain_seconds": "seconds from 0 to 3600",
    "history": "true or false",
    "profile": "true or false",
}

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "tcp_port": (0, 65_535),
    "http_port": (0, 65_535),
    "grpc_port": (0, 65_535),
    "admin_port": (0, 65_535),
    "sync_ms": (1, 60_000),
    "journal_file_bytes": limits.journal_file_bytes_range,
    "journal_file_frames": limits.journal_file_frames_range,
    "journal_file_seconds": (0, limits.delay_seconds_max),
    "compaction_seconds": (0.1, 86_400),
    "task_retention_seconds": (0, limits.delay_seconds_max),
    "task_result_bytes_max": limits.task_result_bytes_range,
    "slow_request_ms": (0, 3_600_000),
    "segments_cache_bytes": (0, limits.segments_cache_bytes_max),
    "request_bytes_max": (1024, limits.request_bytes_max),
    "frame_bytes_max": (1024, limits.request_bytes_max),
    "connections_max": (1, 1_000_000),
    "drain_seconds": (0, 3600),
}
_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(Settings)}
_TRUTHS: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_TEXTS: Final = frozenset(  # with something in them
    {
        *("data", "host", "tls_certificate", "tls_key", "tls_client_ca"),
        *("store_password_file", "advertise", "deployment"),
        *("jwt_issuer", "jwt_audience", "jwt_keys", "jwt_grants_claim"),
        *("master_key", "kms_command", "segments"),
    }
)
_JWT: Final = ("jwt_issuer", "jwt_audience", "jwt_keys")
_LISTS: Final = {  # what each part of a list must look like
    "log_levels": re.compile(rf"[a-z_]+(\.[a-z_]+)*=({'|'.join(get_args(LogLevel))})"),
    "hosts": re.compile(r"[0-9a-zA-Z._-]+|\[?[0-9a-fA-F:.]+\]?"),
    "trusted_proxies": re.compile(r"[0-9a-fA-F:.]+(/[0-9]{1,3})?"),
    "backups": re.compile(r"/[^\0,]*|[a-z0-9]+://[^\s,]+"),
    "cors_origins": re.compile(r"\*|https?://[^/\s,]+"),
}


_SHAPES: Final = {  # what a text must look like
    "http_prefix": re.compile(r"(/[A-Za-z0-9._~-]+)*"),
    "dashboard_environment": re.compile(r".{0,24}"),
}


class SourcedValue(NamedTuple):
    """One value, and where it was found: `penstock.toml:3`, `PENSTOCK_HOST`, `--host`."""

    name: str
    value: Any
    source: str


def load(file: tuple[str, str] | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """Settings from a file (its name and its text), the environment and the flags that were given."""
    problems: list[str] = []
    chosen: dict[str, Any] = {}
    refused: set[str] = set()
    for setting in [*_of_file(file, problems), *_of_environment(environment, problems), *_of_flags(flags)]:
        try:
            chosen[setting.name] = _checked(setting)
        except ValueError as error:
            problems.append(str(error))
            refused.add(setting.name)
    settings = Settings(**chosen)
    problems += _clashes(settings, refused)
    if problems:
        raise BadSettings("\n".join(problems))
    return settings


# Sources.


def _of_file(file: tuple[str, str] | None, problems: list[str]) -> Iterator[SourcedValue]:
    if file is None:
        return
    name, text = file
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{name}: not TOML: {error}")
        return
    for key, value in table.items():
        source = f"{name}{_line_of(key, text)}"
        if key in NAMES:
            yield SourcedValue(key, value, source)
        else:
            problems.append(f"{source}: {key!r} is not a setting; {suggestion(key, NAMES)}")


def _line_of(key: str, text: str) -> str:
    """`:3`, when the key is written plainly at the start of a line."""
    pattern = re.compile(rf"\s*\[?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    lines = (number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line))
    return next((f":{number}" for number in lines), "")


def _of_environment(environment: Mapping[str, str], problems: list[str]) -> Iterator[SourcedValue]:
    known = tuple(ENVIRONMENT_PREFIX + name.upper() for name in NAMES)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_FOREIGN:
            continue
        if variable in known:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            yield SourcedValue(name, _of_text(name, text), variable)
        else:
            problems.append(f"{variable} is not a setting; {suggestion(variable, known)}")


def _has_password(url: str) -> bool:
    return bool(re.search(r"//[^/@]*:[^/@]*@|[?&]password=", url))


def _of_flags(flags: Mapping[str, Any]) -> Iterator[SourcedValue]:
    for name, value in flags.items():
        if value is not None:
            yield SourcedValue(
                name, _of_text(name, value) if isinstance(value, str) else value, "--" + name.replace("_", "-")
            )


def _of_text(name: str, text: str) -> Any:
    """What a text from the environment or the command line stands for; left as it is when it stands for nothing."""
    text = text.strip()
    if name in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if _TYPES[name] is bool:
        return _TRUTHS.get(text.lower(), text)
    if name in _RANGES:
        return _number(text)
    return text


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# Checks.


def _checked(setting: SourcedValue) -> Any:
    """The value itself when it is valid; raises `ValueError` with its source and what it must be otherwise."""
    name, value, source = setting
    try:
        converted = msgspec.convert(value, _TYPES[name])
    except msgspec.ValidationError:
        converted = None
    if name == "store" and source.startswith("--") and isinstance(value, str) and _has_password(value):
        raise ValueError(
            f"{source}: a password in the arguments of a process is visible to every user of this machine: "
            "use PENSTOCK_STORE, store_password_file or PGPASSFILE"
        )
    if converted is None or isinstance(value, bool) != (_TYPES[name] is bool) or not _is_valid(name, converted):
        raise ValueError(f"{source}: {name} must be {EXPECTED[name]}, not {_echo(value)}")
    return converted


def _echo(value: Any) -> str:
    return masked(repr(value))


def _is_valid(name: str, value: Any) -> bool:
    if name in _RANGES and not isinstance(value, str):
        least, greatest = _RANGES[name]
        return bool(least <= value <= greatest)
    if name in _LISTS:
        is_network = is_network_text if name == "trusted_proxies" else bool
        return all(_LISTS[name].fullmatch(part) and is_network(part) for part in value)
    if name == "store":
        return is_store_url(value)
    if name == "node":
        return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,49}", value)) and not value.startswith("embedded-")
    if name == "data_mode":
        return is_mode(value)
    if name == "jwt_keys" and "://" in value:
        return bool(re.fullmatch(r"https://[^@\s]+", value))
    if name in _SHAPES:
        return bool(_SHAPES[name].fullmatch(value)) and value.isprintable()
    if name == "segments" and has_secret(value):
        return False
    if name in _TEXTS:
        return bool(value.strip()) and "\0" not in value
    return True


def is_network_text(text: str) -> bool:
    """Whether it is an address, or a network."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_loopback_name(host: str) -> bool:
    """Whether a name or an address means this machine and no other can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _clashes(settings: Settings, refused: Collection[str]) -> Iterator[str]:
    """What is wrong between settings that are each valid; those that were refused have their defaults."""
    if settings.auth == "off" and settings.dashboard_read_only:
        yield "auth is 'off' and dashboard_read_only is true: without access control anyone may do anything"
    if settings.auth == "off" and not is_loopback_name(settings.host):
        yield f"auth is 'off' and host is {settings.host!r}: without access control a broker listens on loopback only"
    if settings.auth == "off" and settings.admin_host and not is_loopback_name(settings.admin_host):
        yield f"auth is 'off' and admin_host is {settings.admin_host!r}: without access control it must be loopback"
    yield from _port_clashes(settings)
    useless = [name for name in ("node", "advertise", "deployment", "replicated") if getattr(settings, name)]
    if not settings.store and "store" not in refused and useless:
        yield f"{useless[0]} has no effect without store"
    yield from _tls_clashes(settings)
    missing = [name for name in _JWT if not getattr(settings, name)]
    if 0 < len(missing) < len(_JWT):
        yield f"JWTs need {' and '.join(missing)} too"


def _port_clashes(settings: Settings) -> Iterator[str]:
    ports = {name: getattr(settings, name) for name in ("tcp_port", "http_port", "grpc_port")}
    if all(port == "off" for port in ports.values()):
        yield "tcp_port, http_port and grpc_port are all 'off': the broker would be unreachable"
    if settings.admin_host and settings.admin_port == "off":
        yield "admin_host has no effect without admin_port"
    ports["admin_port"] = settings.admin_port
    used: dict[int, str] = {}
    for name, port in ports.items():
        if isinstance(port, int) and port:
            if port in used:
                yield f"{used[port]} and {name} are both {port}: each needs a port of its own"
            used.setdefault(port, name)


def _tls_clashes(settings: Settings) -> Iterator[str]:
    if settings.tls == "proxy":
        if not settings.trusted_proxies:
            yield "tls is 'proxy', but trusted_proxies is empty: add the address of the proxy to it"
        if settings.tls_certificate:
            yield "tls is 'proxy', but tls_certificate is set: with tls = 'on' the proxy connects to the broker by TLS"
    elif settings.speaks_tls:
        missing = [name for name in ("tls_certificate", "tls_key") if not getattr(settings, name)]
        if missing:
            yield f"TLS needs {' and '.join(missing)} too; 'penstock tls init' creates both files"
    else:
        useless = [name for name in ("tls_key", "tls_client_ca") if getattr(settings, name)]
        if useless:
            yield f"{' and '.join(useless)}: no effect without tls_certificate"
    if settings.tls_client == "required" and not settings.tls_client_ca:
        yield "tls_client is 'required', but tls_client_ca is not set: no client could connect"
