"""Settings of a Django project with Penstock behind its tasks."""

from __future__ import annotations

import os

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["penstock.integrations.django", "tests.integrations.shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.backend.PenstockBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ["SHOP_DATA"], "max_attempts": 1},
    }
}
