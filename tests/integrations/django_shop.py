"""A Django project in a process of its own: enqueue, run a worker, look at the results; prints them as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.shop.settings"
django.setup()

from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from penstock.integrations.django.backend import (  # noqa: E402
    StoredError,
    TaskResultDoesNotExist,
    signals,
    task_backends,
)
from tests.integrations.shop import tasks  # noqa: E402

heard: list[str] = []


def hear(what):
    def note(sender, task_result, **_):
        heard.append(f"{what} {task_result.task.name} {task_result.status}")

    getattr(signals, f"task_{what}").connect(note, weak=False)


for each in ("enqueued", "started", "finished"):
    hear(each)


def main():
    added = tasks.add.enqueue(1, b=2)
    sent = asyncio.run(tasks.send.aenqueue("a@b.c"))
    asyncio.run(task_backends["default"].app.aclose_loop())
    sold = tasks.sell.enqueue("tea")
    asked = tasks.who.enqueue("hello")
    later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(3, 4)
    before = added.status
    call_command("penstock_worker", drain=True, concurrency=2)
    # The worker has closed the app behind it, as a process does.
    backend = task_backends["default"]
    backend.app.move(os.environ["SHOP_DATA"])
    for each in (added, sent, sold, asked, later):
        each.refresh()
    sys.stdout.write(json.dumps(reported(added, sent, sold, asked, later, before)) + "\n")
    backend.app.close()


def reported(added, sent, sold, asked, later, before):
    return {
        "before": before,
        "added": [added.status, added.return_value, added.args, added.kwargs, added.attempts],
        "sent": [sent.status, sent.return_value],
        "sold": [sold.status, sold.errors[0].exception_class is tasks.SoldOut, len(sold.errors), sold.attempts],
        "traceback": sold.errors[-1].traceback,
        "asked": asked.return_value == ["hello", asked.id, 1],
        "later": [later.status, later.started_at],
        "same": tasks.add.get_result(added.id) == added,
        "other": mismatched(sent.id),
        "missing": missing(),
        "heard": sorted(heard),
        "unloaded": unloaded(),
    }


def unloaded():
    """What happens for classes whose modules are not loaded, or that are none: the errors, and what was loaded."""
    paths = ["antigravity.Fault", "this.s", "os.path.join", "os.system", "nowhere.Fault", "os", "", "shop..x"]
    before = set(sys.modules)
    kinds = set()
    for path in paths:
        try:
            kinds.add(StoredError(exception_class_path=path, traceback="").exception_class.__name__)
        except ImportError:
            kinds.add("ImportError")
    return [sorted(kinds), sorted(set(sys.modules) - before)]


def mismatched(id):
    try:
        tasks.add.get_result(id)
    except Exception as error:  # noqa: BLE001 - its name is what is looked at
        return type(error).__name__
    return ""


def missing():
    try:
        tasks.add.get_result("0199c0de-5a00-7c1e-8000-7a7e5f3b2a10")
    except TaskResultDoesNotExist:
        return True
    return False


main()
