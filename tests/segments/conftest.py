"""An S3 server for these tests."""

from __future__ import annotations

from tests.support.s3_fixtures import credentials, s3, server

__all__ = ["credentials", "s3", "server"]
