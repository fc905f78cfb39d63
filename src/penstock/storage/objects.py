"""Where sealed segments may be kept instead of in the data directory: object storage, or a directory that is shared.

`Objects` is the seam: whole objects by key. `put` returns when the object is there, whole and durable. A key is written
once, so an object never changes; the one that names the owner of a location is replaced by others of the same size.
A missing object is `FileNotFoundError`; whatever else goes wrong is `Unavailable`, and may go well when it is tried
again, unless it `is_refusal`: there is no such bucket, or no right to use it.

Credentials are never part of the URL: pyarrow takes them from the environment, from a profile or from the machine.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidField, PenstockError, Unavailable
from penstock.model import is_file_name
from penstock.storage.disk import Bytes, Disk, RealDisk
from penstock.urls import has_secret, masked

LOCAL: Final = "local"  # in place of a URL: the data directory itself
SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
S3_OPTIONS: Final = ("region", "scheme", "endpoint_override", "force_virtual_addressing", "tls_ca_file_path")

CONNECT_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 5.0  # without a byte
TRIES: Final = 2
INPUTS_MAX: Final = 256  # objects whose size is remembered

_HINT: Final = "use s3://bucket/prefix?region=…, gs://bucket/prefix, file:///path, or the path of a directory"
_RETRY_HINT: Final = (
    "messages in sealed segments cannot be read until it answers; pushes continue, and sealing is retried"
)
_REFUSALS: Final = re.compile(
    "ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT"
    "|EXPIRED_TOKEN|INVALID_SIGNATURE|PERMANENT_REDIRECT|HTTP response code 40[13]|AccessDenied|[Pp]ermission denied"
    "|PERMISSION_DENIED|UNAUTHENTICATED|AuthenticationFailed|ContainerNotFound"
)
_NOISE: Final = re.compile(r"\s*\(Request ID:[^)]*\)|\. Detail:.*", re.DOTALL)


T = TypeVar("T")


def is_refusal(error: Unavailable) -> bool:
    """Whether the location answered, and refused: trying again does not help."""
    return _REFUSALS.search(error.message) is not None


class Objects(Protocol):
    """Whole objects by key, at one location."""

    def put(self, key: str, data: Bytes) -> None:
        """Store an object; return when it is there, whole and durable."""

    def read(self, key: str, position: int, length: int) -> bytes:
        """Bytes of an object, fewer when it ends before."""

    def size(self, key: str) -> int:
        """Bytes in an object."""

    def list(self, prefix: str) -> list[str]:
        """Names of the objects directly below a prefix, sorted; none when nothing is there."""

    def remove(self, key: str) -> None:
        """Remove an object."""

    def path(self, key: str) -> Path | None:
        """Where a program on this machine can read the object as a file; None when it cannot."""


def check_url(text: str) -> str:
    """The URL in the form in which it is kept: absolute, and without a secret."""
    url = text.strip() if isinstance(text, str) else ""
    if not url or not is_file_name(url):
        raise InvalidField(f"segments: {text!r} is not a location", hint=_HINT)
    if has_secret(url):
        raise InvalidField(
            f"segments: {masked(url)} contains credentials",
            hint="remove them: they are read from the environment, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, from a profile, or from the machine's role",
        )
    if "://" not in url:
        return Path(url).expanduser().absolute().as_uri()
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidField(f"segments: {parts.scheme!r} of {url} is not a supported location", hint=_HINT)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise InvalidField(f"segments: {url} is not an absolute path", hint="write file:///path")
    elif not parts.netloc and parts.scheme not in ("hdfs", "viewfs"):
        raise InvalidField(f"segments: {url} has no bucket", hint=_HINT)
    if parts.scheme == "s3":
        if "@" in parts.netloc:
            raise InvalidField(f"segments: {masked(url)} contains a user name", hint=_HINT)
        _s3_options(url)
    return url.rstrip("/") if not parts.query else url


def _s3_options(url: str) -> dict[str, Any]:
    options: dict[str, Any] = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name, value in options.items():
        if name not in S3_OPTIONS:
            raise InvalidField(f"segments: {name!r} is not an option of s3", hint=f"it has {', '.join(S3_OPTIONS)}")
        if not value:
            raise InvalidField(f"segments: {name} has no value")
    if options.get("scheme", "https") not in ("http", "https"):
        raise InvalidField(f"segments: scheme is {options['scheme']!r}", hint="it is http or https")
    if "force_virtual_addressing" in options:
        options["force_virtual_addressing"] = options["force_virtual_addressing"].lower() in ("1", "true", "yes")
    return options


def open_objects(url: str) -> Objects:
    """The objects at a URL that `check_url` returned. Nothing is asked of the location yet."""
    if url.startswith("file:"):
        return DirectoryObjects(RealDisk(unquote(urlsplit(url).path)))
    return ArrowObjects(url)


class DirectoryObjects:
    """A directory, through a `Disk`: pyarrow's local files are never synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def put(self, key: str, data: Bytes) -> None:
        try:
            self._disk.make_directory(key.rpartition("/")[0])
            self._disk.write_whole(key, data)
        except (PenstockError, OSError) as error:
            raise _failed(error) from error

    def read(self, key: str, position: int, length: int) -> bytes:
        return self._missing_or(lambda: self._disk.read(key, position, length))

    def size(self, key: str) -> int:
        return self._missing_or(lambda: self._disk.size(key))

    def list(self, prefix: str) -> list[str]:
        try:
            return self._missing_or(lambda: self._disk.list(prefix))
        except FileNotFoundError:
            return []

    def remove(self, key: str) -> None:
        def remove() -> None:
            self._disk.remove(key)
            self._disk.sync_directory(key.rpartition("/")[0])

        self._missing_or(remove)

    def path(self, key: str) -> Path | None:
        return self._disk.root / key

    def _missing_or(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except FileNotFoundError:
            raise
        except (PenstockError, OSError) as error:
            raise _failed(error) from error


class ArrowObjects:
    """Object storage through `pyarrow.fs`, connected when it is first needed. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connected: tuple[Any, str] | None = None
        self._inputs: OrderedDict[str, Any] = OrderedDict()  # open ones: opening asks for the size

    def put(self, key: str, data: Bytes) -> None:
        def put() -> None:
            system, path = self._at(key)
            with system.open_output_stream(path, buffer_size=0) as stream:
                stream.write(data)
            size = system.get_file_info(path).size
            if size != len(data):
                raise OSError(f"{size} of {len(data)} bytes arrived")

        with self._lock:
            self._inputs.pop(key, None)  # it knows the size that the object had
        self._asked(put)

    def read(self, key: str, position: int, length: int) -> bytes:
        with self._lock:
            was_open = key in self._inputs
        try:
            return bytes(self._asked(lambda: self._input(key).read_at(length, position)))
        except Unavailable:
            with self._lock:
                self._inputs.pop(key, None)
            if not was_open:
                raise
        # It may have been removed since it was opened, which reading does not say.
        return bytes(self._asked(lambda: self._input(key).read_at(length, position)))

    def size(self, key: str) -> int:
        from pyarrow import fs

        def look() -> int:
            system, path = self._at(key)
            info = system.get_file_info(path)
            if info.type != fs.FileType.File:
                raise FileNotFoundError(path)
            return int(info.size)

        size: int = self._asked(look)
        return size

    def list(self, prefix: str) -> list[str]:
        from pyarrow import fs

        def look() -> list[str]:
            system, path = self._at(prefix)
            infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
            return sorted(info.base_name for info in infos if info.type == fs.FileType.File)

        names: list[str] = self._asked(look)
        return names

    def remove(self, key: str) -> None:
        def remove() -> None:
            system, path = self._at(key)
            system.delete_file(path)

        with self._lock:
            self._inputs.pop(key, None)
        self._asked(remove)

    def path(self, key: str) -> Path | None:
        return None

    def _input(self, key: str) -> Any:
        with self._lock:
            known = self._inputs.get(key)
            if known is not None:
                self._inputs.move_to_end(key)
                return known
        system, path = self._at(key)
        opened = system.open_input_file(path)
        with self._lock:
            self._inputs[key] = opened
            if len(self._inputs) > INPUTS_MAX:
                self._inputs.popitem(last=False)
        return opened

    def _at(self, key: str) -> tuple[Any, str]:
        with self._lock:
            if self._connected is None:
                self._connected = _connect(self._url)
            system, base = self._connected
        return system, f"{base}/{key}" if key else base

    def _asked(self, operation: Any) -> Any:
        import pyarrow as pa

        try:
            return operation()
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _failed(error) from error


def _failed(error: Exception) -> Unavailable:
    text = masked(_NOISE.sub("", str(error)).strip()) or type(error).__name__
    return Unavailable(text, hint=_RETRY_HINT)


def _connect(url: str) -> tuple[Any, str]:
    from pyarrow import fs

    parts = urlsplit(url)
    if parts.scheme != "s3":
        system, base = fs.FileSystem.from_uri(url)
        return system, base.rstrip("/")
    options = _s3_options(url)
    if "region" not in options and "endpoint_override" not in options and not _has_region():
        options["region"] = fs.resolve_s3_region(parts.netloc)
    system = fs.S3FileSystem(
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
        allow_delayed_open=True,  # a small object is one request
        background_writes=False,
        **options,
    )
    return system, f"{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")


def _has_region() -> bool:
    import os

    return any(name in os.environ for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
