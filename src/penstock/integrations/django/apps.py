"""For INSTALLED_APPS: the management command, and every app's `tasks` module."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class PenstockConfig(AppConfig):
    """Imports the modules named `tasks` of all installed apps, so that their tasks are known in every process."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "Penstock"

    def ready(self) -> None:
        autodiscover_modules("tasks")
