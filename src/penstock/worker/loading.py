"""An app by its import path, `package.module:name`; every way in which that can go wrong is told in one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from penstock.errors import InvalidField


def load_app(path: str) -> Any:
    """The app at `path`; the directory we are in is looked through first."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or not all(part.isidentifier() for part in module_name.split(".")):
        hint = "write module:name, such as myapp:app for 'app' in myapp.py"
        raise InvalidField(f"app: {path!r} is not the place of an app", hint=hint)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidField(f"app: {module_name} has no {name!r}", hint=_apps_in(found))
        found = getattr(found, part)
    return checked(found, path)


def checked(found: Any, path: str) -> Any:
    """`found` itself when it is an app."""
    from penstock.tasks.app import App

    if not isinstance(found, App):
        raise InvalidField(f"app: {path} is a {type(found).__name__}", hint="name a penstock.App")
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "start it in the directory that holds the module, or install the package"
            raise InvalidField(f"app: there is no module {error.name!r}", hint=hint) from None
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> InvalidField:
    """Whatever the module's own code raised, with the place in it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    place = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno})"
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = "mend the module; the worker imports it as Python would"
    return InvalidField(f"app: {name} cannot be imported: {type(error).__name__}: {what}{place}", hint=hint)


def _apps_in(module: Any) -> str:
    from penstock.tasks.app import App

    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"there is {', '.join(names)}" if names else "make one with app = penstock.App(…)"
