"""Its tasks, as a user of Django writes them."""

from __future__ import annotations

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class SoldOut(Exception):
    """No tea left."""


@task
def add(a, b):
    return a + b


@task(queue_name="mail", priority=10)
async def send(to):
    return {"to": to}


@task
def sell(what):
    raise SoldOut(f"no {what}")


@task(takes_context=True)
def who(context, greeting):
    return [greeting, context.task_result.id, context.attempt]
