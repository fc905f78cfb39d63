"""How tests are dealt out to several worker processes (`pytest --numprocesses`).

Those with a Spark share it, so they go together to one worker, and first, because that takes longest. Those that start
Spark in processes of their own go one after the other to another worker: more of them at once would only be in each
other's way. Any other test goes by itself to whoever is free.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

SPARK = PurePosixPath("tests/spark")
OWN_SPARK = ("test_cluster.py", "test_sink_kills.py")
TOGETHER = ("test_tidy.py",)  # they share what takes longer than they do
LONG = (*OWN_SPARK, "test_kill9_broker.py", "test_soak.py")  # begun early, or at the end all would wait for one of them


class Dealing(LoadScopeScheduling):  # type: ignore[misc] # it publishes no types
    """Tests of one scope stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        if path.name in OWN_SPARK:
            return "own Spark"
        if path.name in TOGETHER:
            return path.name
        return "Spark" if SPARK in path.parents else nodeid
