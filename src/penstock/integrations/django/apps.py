"""The app for INSTALLED_APPS: it has the management command, and imports the `tasks` module of every app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class PenstockConfig(AppConfig):
    """Imports the `tasks` modules of all installed apps, so that every process knows their tasks."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "Penstock"

    def ready(self) -> None:
        autodiscover_modules("tasks")
