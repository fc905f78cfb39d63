"""The options of every pipeline that ships: each can be given as text, as a command line gives it."""

from __future__ import annotations

import pytest

from penstock.spark.pipelines.base import Option, option_list, parse_options
from penstock.spark.pipelines.custom import CustomOptions
from penstock.spark.pipelines.runner import shipped

KINDS = {each.name: each.options for each in shipped()} | {"custom": CustomOptions}
OPTIONS = [(name, option) for name, kind in KINDS.items() for option in option_list(kind)]


def text_for(option: Option) -> str | bool | list[str]:
    """Something that the option should take."""
    if option.is_switch:
        return True
    if option.is_repeated:
        return ["a", "b"]
    if option.choices:
        return option.choices[0]
    shown = {"NUMBER": "1", "DURATION": "5m", "SIZE": "1MiB", "TIME": "2030-01-31T12:00:00Z"}
    return shown.get(option.metavar, "x")


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{name}{option.flag}" for name, option in OPTIONS])
def test_an_option_takes_text(name: str, option: Option) -> None:
    kind = KINDS[name]
    given = {each.name: text_for(each) for each in option_list(kind) if each.is_required or each == option}

    assert getattr(parse_options(kind, given), option.name) not in (None, "")
    assert option.about, "it says what it is for"
