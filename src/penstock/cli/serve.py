"""`penstock serve`: a broker in this terminal, until it is stopped."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape

from penstock import config
from penstock.cli import output
from penstock.cli.exits import USER_ERROR
from penstock.cli.options import Flags
from penstock.errors import BadSettings
from penstock.units import plural
from penstock.version import VERSION

_DURABLE: Final = {
    "fsync": "a reply means that the data is on disk",
    "interval": "a reply means that the data will be on disk in a moment",
    "os": "a reply means that the operating system has the data",
}
_HINTS: Final = {
    "tcp": 'penstock.connect("{url}")',
    "http": "API: {url}/docs   metrics: {url}/metrics   health: {url}/api/v1/health",
    "grpc": "see docs/grpc.md",
    "admin": "for operators: dashboard {url}/ui/   metrics: {url}/metrics",
}


# Of each setting: what its flag takes, and what it is for.
_ABOUT: Final = {
    "data": ("DIR", "The data directory."),
    "data_mode": ("MODE", "Permissions of the data directory; 0750 lets its group read."),
    "store": ("URL", "Store data in PostgreSQL instead: postgresql://…"),
    "store_password_file": ("FILE", "File with the password of the store."),
    "node": ("NAME", "The name of this node; HOST:PORT if not set."),
    "advertise": ("HOST", "The host name by which clients reach this node."),
    "deployment": ("NAME", "The deployment that the store belongs to."),
    "host": ("ADDRESS", "The address to listen on."),
    "auth": ("on/off", "Require authentication; off is allowed on loopback only."),
    "tcp_port": ("PORT|off", "0 takes any free port."),
    "http_port": ("PORT|off", "0 takes any free port."),
    "grpc_port": ("PORT|off", "0 takes any free port."),
    "admin_port": ("PORT|off", "A separate port for operators."),
    "admin_host": ("ADDRESS", "The address of the admin port; --host if not set."),
    "durability": ("WHAT", "fsync, interval or os."),
    "sync_ms": ("MS", "With durability interval: time between syncs."),
    "journal_file_bytes": ("BYTES", "Start a new journal file at this size."),
    "journal_file_frames": ("N", "Start a new journal file after this many frames."),
    "journal_file_seconds": ("SECONDS", "Start a new journal file at this age; 0 disables it."),
    "compaction_seconds": ("SECONDS", "How often retention is applied."),
    "task_retention_seconds": ("SECONDS", "How long final tasks are kept."),
    "task_result_bytes_max": ("BYTES", "Maximum size of a task result."),
    "log_format": ("WHAT", "auto, json or console."),
    "log_level": ("WHAT", "trace, debug, info, warning or error."),
    "log_levels": ("LEVELS", "Levels of single components such as storage=debug, comma-separated."),
    "audit": ("WHAT", "The audit log: auto (with access control), on or off."),
    "slow_request_ms": ("MS", "Log requests that take longer."),
    "hosts": ("NAMES", "Host names of this broker in URLs, comma-separated."),
    "trusted_proxies": ("NETWORKS", "Proxies whose X-Forwarded-For is trusted, comma-separated."),
    "cors_origins": ("ORIGINS", "Origins that may call the API, comma-separated."),
    "http_prefix": ("PATH", "The path under which a proxy serves this broker, such as /penstock."),
    "dashboard_environment": ("LABEL", "A label shown on the dashboard, such as production."),
    "dashboard_color": ("COLOR", "The color of the label: green, blue, amber or red."),
    "tls": ("WHAT", "off, on, or proxy if a proxy terminates TLS."),
    "tls_certificate": ("FILE", "The certificate (PEM); turns TLS on."),
    "tls_key": ("FILE", "The key of the certificate (PEM)."),
    "tls_client_ca": ("FILE", "The CA that signs client certificates (PEM)."),
    "tls_client": ("WHAT", "Client certificates: optional or required."),
    "tls_minimum": ("VERSION", "Lowest TLS version: 1.3 or 1.2."),
    "jwt_issuer": ("ISSUER", "Accept JWTs with this issuer (iss)."),
    "jwt_audience": ("NAME", "Accept JWTs for this audience (aud)."),
    "jwt_keys": ("FILE|URL", "The issuer's public keys: a JWKS file or an https URL."),
    "jwt_grants_claim": ("CLAIM", "The claim that holds the grants."),
    "master_key": ("FILE", "The key file that wraps the data keys of encrypted queues."),
    "kms_command": ("COMMAND", "Instead of --master-key: a command that wraps and unwraps data keys."),
    "segments": (
        "URL|DIR|local",
        "Where to store sealed Parquet segments: s3://bucket/prefix, gs://…, or a directory.",
    ),
    "segments_cache_bytes": ("BYTES", "Size of the local cache for remote segments."),
    "backups": ("PLACES", "Places where operators other than the owner may write backups, comma-separated."),
    "request_bytes_max": ("BYTES", "Maximum size of a request over HTTP, gRPC or WebSocket."),
    "frame_bytes_max": ("BYTES", "Maximum size of a frame over TCP."),
    "connections_max": ("N", "Maximum number of connections."),
    "drain_seconds": ("SECONDS", "Time to finish requests after SIGTERM."),
}
_SWITCHES: Final = {
    "dashboard_read_only": "Make the dashboard read-only.",
    "replicated": "Refuse a store without synchronous standbys.",
    "plaintext": "Allow a network address without TLS: traffic can be read by anyone on the path.",
    "sealing": "Seal full journal files automatically.",
    "history": "Record the history of metrics.",
    "profile": "Let operators profile the broker.",
}


class SettingFlags(Flags):
    """A flag for each setting of a broker; the text is checked with all other settings."""

    def __init__(self, **values: str | bool | None) -> None:
        self.values = values

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(field))
            for field in msgspec.structs.fields(config.Settings)
        ]


def _annotation(field: Any) -> Any:
    if field.type is bool:
        return Annotated[bool | None, typer.Option(help=_SWITCHES[field.name])]
    takes, about = _ABOUT[field.name]
    default = "none" if field.default in ((), "") else field.default
    if field.name.endswith(("_bytes_max", "_bytes")):
        default = f"{field.default >> 20} MiB"
    elif isinstance(default, float):
        default = f"{default:g}"
    return Annotated[str | None, typer.Option(metavar=takes, help=f"{about} [default: {default}]")]


def serve(
    flags: SettingFlags,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", envvar="PENSTOCK_CONFIG", help="The settings file. [default: ./penstock.toml if it exists]"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the addresses once the broker is ready.")
    ] = False,
) -> None:
    """Start a broker: TCP, HTTP and gRPC on one data directory.

    Settings come from penstock.toml, then PENSTOCK_… variables, then these options. Ctrl-C or SIGTERM stops it after
    finishing running requests; a second one stops it at once.
    """
    try:
        settings = settings_of(config_file, flags.values)
        _run(settings, config_file, flags.values, as_json)
    except BadSettings as error:
        if as_json:
            raise
        *others, last = error.message.split("\n")
        for problem in others:
            output.write_error(error.code, problem, "", as_json=False)
        output.write_error(error.code, last, error.hint, as_json=False)
        raise typer.Exit(USER_ERROR) from None


def settings_of(config_file: Path | None, flags: dict[str, Any]) -> config.Settings:
    """Settings from everywhere, checked."""
    path = config_file or Path(config.FILE_NAME)
    try:
        file = (str(path), path.read_text(encoding="utf-8")) if config_file or path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return config.load(file, os.environ, flags)


def _run(settings: config.Settings, config_file: Path | None, flags: dict[str, Any], as_json: bool) -> None:
    # Late: `penstock --help` needs none of it.
    from penstock.server.serve import run
    from penstock.telemetry import logs

    logs.setup(settings.log_format, settings.log_level, levels=settings.log_levels)

    def reload() -> None:
        """SIGHUP: the levels of the log may have changed, in the file."""
        try:
            changed = settings_of(config_file, flags)
            logs.set_level(changed.log_level, changed.log_levels)
        except BadSettings as error:
            logs.warn("settings were not reloaded", problems=error.message.split("\n"))

    # In a log or a pipe the link would be there for others to use.
    show_link = _say_link if sys.stdout.isatty() and not as_json else None
    run(settings, _say_json if as_json else _say, reload, show_link)


def _say_link(link: str) -> None:
    output.write(f"  Dashboard (this link works once, for 10 minutes): {escape(link)}\n")


def _say_json(started: Any) -> None:
    listeners = {
        address.protocol: {"host": address.host, "port": address.port, "url": address.url}
        for address in started.addresses
    }
    ready = {"version": VERSION, **msgspec.to_builtins(started), "addresses": listeners}
    output.write_json_line(ready)


def _say(started: Any) -> None:
    """One line per listener, and the first thing to try."""
    from penstock.dashboard.files import Files

    about = f" Node {escape(started.node)} is {started.role}." if started.role else ""
    output.write(f"[bold]Penstock {VERSION}[/] is ready.{about}\n")
    promise = f"{started.durability}: {_DURABLE[started.durability]}"
    output.write(f"  [bold]data[/]  {escape(started.data)}   {plural(started.queues, 'queue')}; {promise}")
    urls = {address.protocol: address.url for address in started.addresses}
    for address in started.addresses:
        hint = _HINTS[address.protocol].format(url=address.url)
        output.write(f"  [bold]{address.protocol:4}[/]  {address.url}   [dim]{hint}[/]")
    if "http" in urls and not Files().is_built:
        output.write("\n  The dashboard is not built. From a clone, installing it needs Node 20 or newer.")
    if "http" in urls:
        output.write(_first_steps(urls["http"], started.header_file))
    output.write("\n  Ctrl-C stops it.\n")


def _first_steps(url: str, header_file: str) -> str:
    curl = f"curl -H @{shlex.quote(header_file)}" if header_file else "curl"
    queue = f"{url}/api/v1/queues/mail"
    steps = (
        "\n  Try it in another terminal:\n"
        f"""    {curl} {queue}/messages -d '{{"messages": [{{"payload": "hello"}}]}}'\n"""
        f"""    {curl} {queue}/lease -d '{{"max": 1}}'"""
    )
    if not header_file:
        return steps
    return steps + (
        "\n\n  Your own programs on this machine need no key. For others, create one:\n"
        "    penstock key create NAME --grant producer:mail"
    )
