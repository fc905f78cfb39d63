"""Looking for many tasks at once: those who ask while a look is under way are answered by the next one, together.

For callers that must not block. `ask` says whether somebody has to `lead`, in a thread that may: it looks, and goes on
until nobody asks any more. Nothing is missed: an answer is from a look that began after the question.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from penstock.errors import Internal, PenstockError, TaskNotFound
from penstock.model_tasks import TaskView

logger: Final = logging.getLogger("penstock")

Told = Callable[[TaskView | PenstockError], object]  # called from any thread; it must not block


def not_found(task_id: str) -> TaskNotFound:
    """What is said of a task that is not there."""
    return TaskNotFound(f"there is no task {task_id}")


class Looks:
    """See the module's rules. `views` answers with those of some ids that are there."""

    def __init__(self, views: Callable[[Collection[str]], Iterable[TaskView]]) -> None:
        self._views = views
        self._lock = threading.Lock()
        self._asked: dict[str, list[Told]] = {}
        self._is_led = False

    def ask(self, task_id: str, told: Told) -> bool:
        """Have `told` called with the task as it is now; whether `lead` must be called for that."""
        with self._lock:
            self._asked.setdefault(task_id, []).append(told)
            must_lead, self._is_led = not self._is_led, True
        return must_lead

    def lead(self) -> None:
        """Look until everybody is answered."""
        while asked := self._take():
            found = self._look(asked)
            for task_id, callers in asked.items():
                answer = found if isinstance(found, PenstockError) else found.get(task_id) or not_found(task_id)
                for told in callers:
                    with suppress(RuntimeError):  # its loop is closed: nobody is left to tell
                        told(answer)

    def _look(self, asked: Collection[str]) -> dict[str, TaskView] | PenstockError:
        try:
            return {view.task_id: view for view in self._views(asked)}
        except PenstockError as error:
            return error
        except Exception:  # whoever asks next must find somebody who leads
            logger.exception("a fault in the task index")
            return Internal("the task index failed")

    def _take(self) -> dict[str, list[Told]]:
        with self._lock:
            asked, self._asked = self._asked, {}
            self._is_led = bool(asked)
        return asked
