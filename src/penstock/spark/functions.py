"""Spark's functions of columns (`pyspark.sql.functions`), imported when the first of them is used.

So modules of pipelines can be imported, listed and explained where PySpark is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403 - everything, as that module has it
else:

    def __getattr__(name: str) -> Any:
        from pyspark.sql import functions

        return getattr(functions, name)
