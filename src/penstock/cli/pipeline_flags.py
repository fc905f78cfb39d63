"""`penstock pipeline run NAME`: a command that has the flags of the pipeline it is given the name of.

The name is looked for before the words are parsed; the pipeline's options then are flags like all others, in the help
too. What was given of them is in the context, as text.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from penstock.spark.pipelines.base import Options, Pipeline
from penstock.spark.pipelines.typed import Option, described

PANEL: Final = "Options of"
_NAMED: Final = "penstock.pipeline"
_GIVEN: Final = "penstock.given"
_PREFIX: Final = "own_"  # keeps a pipeline's options apart from those of the command


class PipelineCommand(TyperCommand):
    """A command whose flags depend on its argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Find the pipeline, then parse."""
        from penstock.spark.pipelines.registry import find

        name = first_word(args, self.params)
        ctx.meta[_NAMED] = find(name) if name is not None and not ctx.resilient_parsing else None
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own, and the pipeline's."""
        *own, last = super().get_params(ctx)
        pipeline = ctx.meta.get(_NAMED)
        return [*own, *(parameters(pipeline) if pipeline else ()), last]

    def invoke(self, ctx: Any) -> Any:
        """Take the pipeline's options out of the way of the function."""
        own = [name for name in ctx.params if name.startswith(_PREFIX)]
        values = {name.removeprefix(_PREFIX): ctx.params.pop(name) for name in own}
        ctx.meta[_GIVEN] = {name: value for name, value in values.items() if value not in (None, [], ())}
        return super().invoke(ctx)


def named(ctx: typer.Context) -> Pipeline:
    """The pipeline that a command line names."""
    found: Pipeline = ctx.meta[_NAMED]
    return found


def chosen(ctx: typer.Context) -> Options:
    """Its options, parsed."""
    from penstock.spark.pipelines.typed import typed

    return typed(named(ctx).options, ctx.meta[_GIVEN])


def first_word(words: Sequence[str], parameters: Sequence[Any]) -> str | None:
    """The first word that is neither a flag nor the value of one."""
    takes_value = {name for each in parameters if not getattr(each, "is_flag", False) for name in each.opts}
    rest = iter(words)
    for word in rest:
        if word in takes_value:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def parameters(pipeline: Pipeline) -> list[Any]:
    """A parameter for each option of a pipeline."""

    def shape() -> None:
        """Nothing but its parameters."""

    options = described(pipeline.options)
    shape.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(option, f"{PANEL} {pipeline.name}") for option in options]
    )
    app = typer.Typer(add_completion=False)
    app.command()(shape)
    return [each for each in get_command(app).params if each.name.startswith(_PREFIX)] if options else []


def _parameter(option: Option, panel: str) -> inspect.Parameter:
    shown = f"{option.about} [default: {option.default_shown}]" if option.default_shown else option.about
    kind: Any = str | None
    flag = option.flag
    if option.is_switch:
        kind = bool | None
        flag = f"{flag}/--no-{flag.removeprefix('--')}" if option.default else flag
    elif option.is_repeated:
        kind, shown = list[str] | None, f"{shown.rstrip('.')}; may repeat."
    made = typer.Option(flag, metavar=option.metavar or None, help=shown, rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        _PREFIX + option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, made]
    )
