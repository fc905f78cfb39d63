"""A backend for Django's tasks: `django.tasks` in Django 6, or the package `django-tasks` for earlier versions.

    INSTALLED_APPS = [..., "penstock.integrations.django"]
    TASKS = {
        "default": {
            "BACKEND": "penstock.integrations.django.backend.PenstockBackend",
            "OPTIONS": {"url": "penstock://localhost:7710"},
        }
    }

`python manage.py penstock_worker` runs the tasks.
"""
