"""The class of a stored error is looked up among what is loaded: its name was written by somebody else."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.integrations.django.backend import StoredError

TRAP = """
from pathlib import Path
Path({marker!r}).write_text("imported")
class Fault(Exception): ...
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is written when `trap`, or `loaded.trap`, is imported; `loaded` itself is loaded."""
    marker = tmp_path / "imported"
    trap = TRAP.format(marker=str(marker))
    (tmp_path / "trap.py").write_text(trap)
    (tmp_path / "loaded").mkdir()
    (tmp_path / "loaded" / "trap.py").write_text(trap)
    (tmp_path / "loaded" / "__init__.py").write_text(
        "class Known(Exception):\n    class Inner(Exception): ...\n"
        "def __getattr__(name):\n    import importlib\n    return importlib.import_module('loaded.trap').Fault\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded")
    yield marker
    for name in ("loaded", "loaded.trap", "trap"):
        sys.modules.pop(name, None)


def class_of(path: str) -> Any:
    return StoredError(exception_class_path=path, traceback="").exception_class


@pytest.mark.parametrize(
    "path",
    ["trap.Fault", "loaded.trap.Fault", "loaded.Fault", "loaded.trap", "trap", ".trap", "loaded..trap.Fault"],
)
def test_a_module_that_is_not_loaded_stays_so(marker, path):
    before = set(sys.modules)

    with pytest.raises(ImportError, match="is not an exception of a loaded module"):
        class_of(path)

    assert not marker.exists()
    assert set(sys.modules) == before


def test_a_module_that_waits_to_be_loaded_lazily_stays_so(marker):
    spec = importlib.util.find_spec("trap")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["trap"] = lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)

    with pytest.raises(ImportError):
        class_of("trap.Fault")

    assert not marker.exists()
    assert lazy.Fault.__name__ == "Fault"  # so that it was a trap
    assert marker.exists()


def test_looking_a_class_up_asks_a_loaded_module_for_nothing(marker, monkeypatch):
    asked: list[str] = []

    class Noisy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    module = Noisy("noisy")
    module.Fault = type("Fault", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "noisy", module)
    asked.clear()

    found = class_of("noisy.Fault")

    assert asked == []
    assert found.__name__ == "Fault"


def test_a_class_that_is_loaded_is_found(marker):
    assert class_of("builtins.ValueError") is ValueError
    assert class_of("loaded.Known.Inner") is sys.modules["loaded"].Known.Inner
