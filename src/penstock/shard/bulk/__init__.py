"""Operations on many things: tasks, dead letters, messages of the past.

An operation is journaled with every step that it takes, in the frame of the step itself. So it is stopped, continued
and restarted without losing or repeating anything, and what it has done is known at any moment. `book.py` has the
operations; `runner.py` works on them; `letters.py`, `replay.py` and `tasks/operations.py` know what a step is.
"""
