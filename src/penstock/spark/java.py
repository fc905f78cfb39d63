"""Is there a Spark to work with? PySpark, and a Java that is new enough, looked for where Spark itself would look.

Without this check Spark says that its gateway exited before it sent its port number, which helps nobody.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from penstock.errors import SparkMissing

JAVA_VERSION_MIN: Final = 17
INSTALL_PYSPARK: Final = "pip install 'penstock[spark]'"
INSTALL_JAVA: Final = "apt install openjdk-17-jre-headless"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS: Final = 60.0


def require_spark() -> None:
    """`SparkMissing` when there is no PySpark, or no Java for it."""
    require_pyspark()
    require_java(os.environ)


def require_pyspark() -> None:
    """`SparkMissing` when PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed", hint=f"type: {INSTALL_PYSPARK}")


def require_java(environment: Mapping[str, str]) -> str:
    """The path of the Java that Spark will start: that of JAVA_HOME, or else the first in PATH."""
    java = _find(environment)
    version = _version(java)
    if version < JAVA_VERSION_MIN:
        hint = f"type: {INSTALL_JAVA}, or set JAVA_HOME to where a newer one is"
        raise SparkMissing(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {java} is Java {version}", hint=hint)
    return java


def _find(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if not os.access(java, os.X_OK):
            hint = "set JAVA_HOME to where Java is, or unset it"
            raise SparkMissing(f"JAVA_HOME is {home}, where there is no bin/java", hint=hint)
        return java
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise SparkMissing("Spark needs Java, and there is none", hint=f"type: {INSTALL_JAVA}")
    return found


def _version(java: str) -> int:
    try:
        asked = subprocess.run(  # noqa: S603 - the Java that Spark would start anyway
            [java, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissing(f"{java} does not start: {error}", hint=f"type: {INSTALL_JAVA}") from None
    found = _VERSION.search(asked.stderr + asked.stdout)
    if found is None:
        hint = f"type: {INSTALL_JAVA}, or set JAVA_HOME to where a sound one is"
        raise SparkMissing(f"{java} does not say which version it is", hint=hint)
    return int(found[1])
