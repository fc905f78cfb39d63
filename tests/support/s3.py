"""A real S3 server for tests: moto's, in a process of its own, on a port of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}
_SERVER = """
from moto.server import ThreadedMotoServer
import sys, time
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """Where the server is, and its buckets."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, path: str) -> str:
        """The URL of a prefix, for `segments`."""
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http"

    def system(self) -> Any:
        from pyarrow import fs

        keys = {"access_key": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secret_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        return fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            **keys,
        )

    def make_bucket(self, name: str) -> None:
        self.system().create_dir(name)

    def objects(self, path: str) -> list[str]:
        """All objects below a prefix, without it."""
        from pyarrow import fs

        infos = self.system().get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix(path + "/") for info in infos if info.type == fs.FileType.File)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := re.fullmatch(r"port (\d+)\n", line):
                yield S3Server(int(match[1]))
                return
        raise AssertionError("the S3 server did not start")
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()
