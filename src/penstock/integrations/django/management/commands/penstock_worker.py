"""`python manage.py penstock_worker`: run the tasks of a backend."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from penstock.errors import PenstockError
from penstock.integrations.django.backend import PenstockBackend, task_backends
from penstock.telemetry import logs
from penstock.worker import Worker
from penstock.worker.command import run_worker


class Command(BaseCommand):
    """Like `penstock worker`, with Django set up."""

    help = "Run the tasks of a Penstock backend until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="the name of the backend in TASKS")
        parser.add_argument("--concurrency", type=int, default=16, help="how many tasks to run at once")
        parser.add_argument("--queues", help="queues to work on, comma-separated (default: those of the backend)")
        parser.add_argument("--drain", action="store_true", help="exit when no tasks are left")

    def handle(self, *args: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, PenstockBackend):
            raise CommandError(f"--backend: {options['backend']!r} is not a Penstock backend")
        queues = options["queues"]
        names = sorted(backend.queues or backend.app.queues) if queues is None else queues.split(",")
        logs.setup("auto", "info")
        try:
            run_worker(
                lambda: Worker(backend.app, queues=names, concurrency=options["concurrency"], drain=options["drain"])
            )
        except PenstockError as error:
            raise CommandError(str(error)) from None
