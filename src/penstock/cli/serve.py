"""`penstock serve`: a broker in this terminal, until it is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape

from penstock import config
from penstock.cli import output
from penstock.errors import BadSettings
from penstock.version import VERSION

USER_ERROR: Final = 1

_DURABLE: Final = {
    "fsync": "a reply means that it is on the disk",
    "interval": "a reply means that it will be on the disk in a moment",
    "os": "a reply means that the operating system has it",
}
_HINTS: Final = {
    "tcp": 'penstock.connect("{url}")',
    "http": "API: {url}/docs   metrics: {url}/metrics   health: {url}/api/v1/health",
    "grpc": "grpcurl -plaintext {url} list",
}


def _setting(takes: str, says: str) -> Any:
    return typer.Option(metavar=takes, help=says)


def _port(default: int) -> Any:
    return _setting("PORT|off", f"0 takes any free port. [default: {default}]")


def serve(
    data: Annotated[str | None, _setting("DIR", "The data directory. [default: ./data]")] = None,
    data_mode: Annotated[str | None, _setting("MODE", "Who may read it: 0750 lets a group. [default: 0700]")] = None,
    host: Annotated[str | None, _setting("ADDRESS", "The address to listen on. [default: 127.0.0.1]")] = None,
    tcp_port: Annotated[str | None, _port(7710)] = None,
    http_port: Annotated[str | None, _port(7711)] = None,
    grpc_port: Annotated[str | None, _port(7712)] = None,
    durability: Annotated[str | None, _setting("WHAT", "fsync, interval or os. [default: fsync]")] = None,
    sync_ms: Annotated[str | None, _setting("MS", "With interval: until the sync. [default: 50]")] = None,
    task_retention_seconds: Annotated[
        str | None, _setting("SECONDS", "How long final tasks are kept. [default: 604800]")
    ] = None,
    log_format: Annotated[str | None, _setting("WHAT", "auto, json or console. [default: auto]")] = None,
    log_level: Annotated[str | None, _setting("WHAT", "debug, info, warning or error. [default: info]")] = None,
    slow_request_ms: Annotated[str | None, _setting("MS", "Slower requests are logged. [default: 1000]")] = None,
    hosts: Annotated[str | None, _setting("NAMES", "Names of this broker in URLs, by commas. [default: none]")] = None,
    trusted_proxies: Annotated[
        str | None, _setting("NETWORKS", "Proxies whose X-Forwarded-For counts, by commas. [default: none]")
    ] = None,
    cors_origins: Annotated[
        str | None, _setting("ORIGINS", "Origins that may call, by commas. [default: none]")
    ] = None,
    request_bytes_max: Annotated[
        str | None, _setting("BYTES", "The largest request over HTTP, gRPC or WebSocket. [default: 32 MiB]")
    ] = None,
    frame_bytes_max: Annotated[str | None, _setting("BYTES", "The largest frame over TCP. [default: 32 MiB]")] = None,
    connections_max: Annotated[str | None, _setting("N", "Connections at once. [default: 10000]")] = None,
    drain_seconds: Annotated[str | None, _setting("SECONDS", "Time to finish after SIGTERM. [default: 10]")] = None,
    profile: Annotated[bool | None, typer.Option(help="Serve /debug/profile.")] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", envvar="PENSTOCK_CONFIG", help="[default: ./penstock.toml if it is there]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say in JSON that it is ready, and where.")] = False,
) -> None:
    """Start a broker: TCP, HTTP and gRPC on one data directory.

    Settings come from penstock.toml, then PENSTOCK_… variables, then these options. Ctrl-C or SIGTERM stops it after
    finishing what was begun; a second one stops it at once.
    """
    flags = {name: value for name, value in locals().items() if name in config.NAMES}
    try:
        settings = settings_of(config_file, flags)
        _run(settings, config_file, flags, as_json)
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

    logs.setup(settings.log_format, settings.log_level)

    def reload() -> None:
        """SIGHUP: the level of the log may have changed, in the file."""
        try:
            logs.set_level(settings_of(config_file, flags).log_level)
        except BadSettings as error:
            logs.warn("settings were not read again", problems=error.message.split("\n"))

    run(settings, _say_json if as_json else _say, reload)


def _say_json(started: Any) -> None:
    listeners = {each.protocol: {"host": each.host, "port": each.port, "url": each.url} for each in started.addresses}
    ready = {"version": VERSION, **msgspec.to_builtins(started), "addresses": listeners}
    output.write_json_line(ready)


def _say(started: Any) -> None:
    """One line per listener, and the first thing to try."""
    output.write(f"[bold]Penstock {VERSION}[/] is ready.\n")
    queues = f"{started.queues:,} queue{'' if started.queues == 1 else 's'}"
    output.write(
        f"  [bold]data[/]  {escape(started.data)}   {queues}; {started.durability}: {_DURABLE[started.durability]}"
    )
    urls = {each.protocol: each.url for each in started.addresses}
    for protocol, url in urls.items():
        output.write(f"  [bold]{protocol:4}[/]  {url}   [dim]{_HINTS[protocol].format(url=url)}[/]")
    if "http" in urls:
        output.write(_first_steps(urls["http"]))
    output.write("\n  Ctrl-C stops it.\n")


def _first_steps(url: str) -> str:
    queue = f"{url}/api/v1/queues/mail"
    return (
        "\n  Try it in another terminal:\n"
        f"""    curl {queue}/messages -d '{{"messages": [{{"payload": "hello"}}]}}'\n"""
        f"""    curl {queue}/lease -d '{{"max": 1}}'"""
    )
