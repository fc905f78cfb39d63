"""Django's own tasks, with Penstock behind them: enqueued, run by the management command, looked at through results.

Django 6 needs Python 3.12; `make setup` prepares it in `.venv/django6` where the tests themselves run on an older one,
with the package that brings the same tasks to older Djangos.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEWER = ROOT / ".venv" / "django6" / "bin" / "python"
PYTHONS = [sys.executable, *([str(NEWER)] if NEWER.exists() else [])]


@pytest.mark.parametrize("python", PYTHONS, ids=["this", "django6"][: len(PYTHONS)])
def test_tasks_of_django_run_on_penstock(python, tmp_path):
    variables = {**os.environ, "SHOP_DATA": str(tmp_path / "data"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [python, "-m", "tests.integrations.django_shop"],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[0])
    assert reported.pop("traceback").endswith("SoldOut: no tea")
    assert reported == {
        "before": "READY",
        "added": ["SUCCESSFUL", 3, [1], {"b": 2}, 1],
        "sent": ["SUCCESSFUL", {"to": "a@b.c"}],
        "sold": ["FAILED", True, 1, 1],
        "asked": True,
        "later": ["READY", None],
        "same": True,
        "other": "TaskResultMismatch",
        "missing": True,
        "unloaded": [["ImportError"], []],
        "heard": [
            "enqueued add READY",
            "enqueued add READY",
            "enqueued sell READY",
            "enqueued send READY",
            "enqueued who READY",
            "finished add SUCCESSFUL",
            "finished sell FAILED",
            "finished send SUCCESSFUL",
            "finished who SUCCESSFUL",
            "started add RUNNING",
            "started sell RUNNING",
            "started send RUNNING",
            "started who RUNNING",
        ],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ulr": "x"}, "TASKS['default']: no option 'ulr'; did you mean 'url'?"),
        ({"url": "penstock://localhost:port"}, "TASKS['default']: "),
    ],
)
def test_what_is_wrong_with_the_settings_is_named(options, message, tmp_path):
    script = (
        "import os, django; from django.core.exceptions import ImproperlyConfigured\n"
        "django.conf.settings.configure()\n"
        "from penstock.integrations.django.backend import PenstockBackend\n"
        f"try: PenstockBackend('default', {{'OPTIONS': {options!r}}})\n"
        "except ImproperlyConfigured as error: os.write(1, str(error).encode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import django.conf;" + script], capture_output=True, text=True, check=True
    )

    assert message in done.stdout
