"""Pipelines of your own: a function from DataFrame to DataFrame, between two queues.

@penstock.pipeline(source="orders", sink="orders.enriched")
def enrich(orders: DataFrame) -> DataFrame: …

The function stays what it was, and can be called and tested as it is. `penstock pipeline run module:enrich` reads what
came to the source since the last run and writes what the function makes of it to the sink, exactly once; with
`--stream` it does so as messages come.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidField, PenstockError
from penstock.model import check_name, suggestion
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Payload = Literal["binary", "string", "json", "none"]
OutputMode = Literal["append", "update", "complete"]
EXAMPLE: Final = "such as mymodule:enrich, for enrich in mymodule.py"


class OwnOptions(Options, frozen=True):
    """What a run of a pipeline of your own takes."""

    stream: Annotated[bool, Meta(description="Go on as messages come, in micro-batches, until Ctrl-C.")] = False
    available_now: Annotated[bool, Meta(description="With --stream: end when all that is there now is done.")] = False
    trigger_seconds: Annotated[
        float, Meta(description="With --stream: from one micro-batch to the next; 0 is at once.", ge=0)
    ] = 1.0
    messages_max: (
        Annotated[int, Meta(description="With --stream: at most so many messages in a micro-batch.", ge=1)] | None
    ) = None
    checkpoint: Annotated[
        str | None, Meta(description="With --stream: where Spark keeps its place; else 'checkpoint' in --out.")
    ] = None
    fail_on_data_loss: Annotated[
        bool, Meta(description="Fail when retention has removed what was not read yet; otherwise skip it.")
    ] = True


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """The two queues, and how the first is read."""

    sources: tuple[str, ...]  # names and patterns
    sink: str
    payload: Payload = "binary"
    payload_schema: str | None = None
    columns: tuple[str, ...] | None = None
    output_mode: OutputMode = "append"

    def reading(self, url: str) -> dict[str, str]:
        """Options of the source."""
        found = {"url": url, "payload": self.payload}
        if self.payload_schema is not None:
            found["payloadSchema"] = self.payload_schema
        if self.columns is not None:
            found["columns"] = ",".join(self.columns)
        return found


class OwnPipeline:
    """A function that is a pipeline too."""

    def __init__(self, function: Callable[[DataFrame], DataFrame], between: Between) -> None:
        self.function = function
        self.between = between
        functools.update_wrapper(self, function)

    def __call__(self, frame: DataFrame) -> DataFrame:
        return self.function(frame)

    @property
    def name(self) -> str:
        """How it is named on a command line."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def pipeline(self) -> Pipeline:
        """What `penstock pipeline run` runs."""
        sources = ", ".join(self.between.sources)
        about = " ".join((self.function.__doc__ or "").split())
        explanation = (
            f"It reads what came to {sources} since the last run, has {self.name} make of it what it will, and pushes "
            f"that to {self.between.sink}, exactly once. With --stream it goes on as messages come."
        )
        summary = f"From {sources} to {self.between.sink}."
        return Pipeline(self.name, summary, f"{about}\n\n{explanation}".strip(), OwnOptions, self._run)

    def _run(self, run: Run) -> Report:
        if run.queues or run.until is not None:
            which = "--queue" if run.queues else "--until"
            hint = "its source is in its decorator, and a run takes all that has come since the last one"
            raise InvalidField(f"{which}: a pipeline of your own does not take it", hint=hint)
        if run.options.stream:
            from penstock.spark.pipelines.owning.stream import run_stream

            return run_stream(self, run)
        from penstock.spark.pipelines.owning.batch import run_batch

        return run_batch(self, run)

    def applied(self, frame: DataFrame) -> DataFrame:
        """What the function makes of a frame; checked, since anybody may have written it."""
        from pyspark.sql import DataFrame

        found = self._called(frame)
        if not isinstance(found, DataFrame):
            hint = "it must return the DataFrame whose rows are to be pushed"
            raise InvalidField(f"{self.name} returned {type(found).__name__}, not a DataFrame", hint=hint)
        return found

    def _called(self, frame: DataFrame) -> Any:
        try:
            return self.function(frame)
        except Exception as error:
            # What Spark or we raise says what is wrong; anything else only the author can know.
            if isinstance(error, PenstockError) or type(error).__module__.startswith("pyspark."):
                raise
            code = self.function.__code__
            lines = [
                each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == code.co_filename
            ]
            where = f"line {lines[-1]} of {os.path.basename(code.co_filename)}" if lines else self.name
            raise InvalidField(f"{self.name} failed: {type(error).__name__}: {error}", hint=f"see {where}") from error


def pipeline(
    *,
    source: str | Sequence[str],
    sink: str,
    payload: Payload = "binary",
    payload_schema: str | None = None,
    columns: Sequence[str] | None = None,
    output_mode: OutputMode = "append",
) -> Callable[[Callable[[DataFrame], DataFrame]], OwnPipeline]:
    """Make a function from DataFrame to DataFrame a pipeline from one queue, or several, to another.

    `source` is a name, a pattern such as `orders.*`, or several of them. `payload`, `payload_schema` and `columns` are
    the options of the same names of the source (docs/spark.md); `output_mode` is Spark's, for streams.
    """
    sources = (source,) if isinstance(source, str) else tuple(source)
    if not sources:
        raise InvalidField("source: no queue is named")
    check_name(sink)
    if any(fnmatchcase(sink, each) for each in sources):
        raise InvalidField(f"sink: {sink} is a source too", hint="it would read what it wrote, without end")
    chosen = None if columns is None else tuple(columns)
    between = Between(
        sources=sources,
        sink=sink,
        payload=payload,
        payload_schema=payload_schema,
        columns=chosen,
        output_mode=output_mode,
    )
    return lambda function: OwnPipeline(function, between)


def load(name: str) -> OwnPipeline:
    """The pipeline that `module:function` names; modules are looked for in the current directory first."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidField(f"pipeline: {name!r} is not module:function", hint=EXAMPLE)
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, OwnPipeline):
        return found
    others = tuple(each for each, value in vars(module).items() if isinstance(value, OwnPipeline))
    if found is not None:
        raise InvalidField(
            f"pipeline: {name} is no pipeline", hint="decorate it with @penstock.pipeline(source=…, sink=…)"
        )
    hint = suggestion(attribute, others) if others else "decorate a function with @penstock.pipeline(source=…, sink=…)"
    raise InvalidField(f"pipeline: {module_name} has no {attribute!r}", hint=hint)


def _module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"run this where {name.partition('.')[0]} is, or install it; {EXAMPLE}"
            raise InvalidField(f"pipeline: there is no module {name!r}", hint=hint) from None
        raise InvalidField(f"pipeline: {name} needs {error.name!r}, which is not installed") from None
    except Exception as error:  # noqa: BLE001 - anything can happen in a module of somebody else's
        raise InvalidField(f"pipeline: {name} cannot be imported: {type(error).__name__}: {error}") from None
