"""What sslyze finds about the TLS of a port, as JSON: python -P tls_scan.py PORT [--early-data]

It runs in a virtualenv of its own (see the Makefile): sslyze wants an older cryptography than we do.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sslyze.plugins.scan_commands import ScanCommand
from sslyze.scanner.models import ServerScanRequest, ServerScanStatusEnum
from sslyze.scanner.scan_command_attempt import ScanCommandAttemptStatusEnum
from sslyze.scanner.scanner import Scanner
from sslyze.server_setting import ServerNetworkLocation

VERSIONS = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3")


def scan(port: int, has_early_data: bool) -> dict[str, Any]:
    """The ciphers of each version that the port accepts, and its weaknesses."""
    commands = {getattr(ScanCommand, f"{version.upper()}_CIPHER_SUITES") for version in VERSIONS}
    commands |= {ScanCommand.HEARTBLEED, ScanCommand.TLS_COMPRESSION, ScanCommand.OPENSSL_CCS_INJECTION}
    if has_early_data:
        commands.add(ScanCommand.TLS_1_3_EARLY_DATA)
    scanner = Scanner()
    scanner.queue_scans(
        [ServerScanRequest(ServerNetworkLocation("localhost", port, "127.0.0.1"), scan_commands=commands)]
    )
    (found,) = scanner.get_results()
    assert found.scan_status is ServerScanStatusEnum.COMPLETED, found.connectivity_error_trace
    result: Any = found.scan_result
    attempts = {command.value: getattr(result, command.value) for command in commands}
    for name, attempt in attempts.items():
        assert attempt.status is ScanCommandAttemptStatusEnum.COMPLETED, (name, attempt.error_trace)
    suites = {version: attempts[f"{version}_cipher_suites"].result.accepted_cipher_suites for version in VERSIONS}
    return {
        "accepted": {version: sorted(each.cipher_suite.name for each in found) for version, found in suites.items()},
        "heartbleed": result.heartbleed.result.is_vulnerable_to_heartbleed,
        "compression": result.tls_compression.result.supports_compression,
        "ccs_injection": result.openssl_ccs_injection.result.is_vulnerable_to_ccs_injection,
        "early_data": has_early_data and result.tls_1_3_early_data.result.supports_early_data,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(scan(int(sys.argv[1]), "--early-data" in sys.argv)))
