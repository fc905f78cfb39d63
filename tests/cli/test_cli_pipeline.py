"""`penstock pipeline`, as far as it goes without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
from msgspec import Meta

from penstock.cli import output, spark_session
from penstock.cli.pipeline import blocks
from penstock.errors import InvalidField
from penstock.spark.pipelines import runner
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table, option_list, parse_options
from penstock.spark.pipelines.replay import ReplayOptions
from penstock.spark.pipelines.runner import execute
from penstock.spark.pipelines.state import Record, keep, locked, read_state, records, write_state

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


class Choices(Options, frozen=True):
    """Options of every kind."""

    every: Annotated[Literal["minute", "hour"], Meta(description="How wide a row is.")] = "hour"
    top: Annotated[int, Meta(description="So many rows.", ge=1)] = 10
    gap_seconds: Annotated[float, Meta(description="Until it is over.")] = 60.0
    part_bytes: Annotated[int | None, Meta(description="At most so large.")] = None
    by: Annotated[tuple[str, ...], Meta(description="Columns.")] = ()
    at: Annotated[datetime | None, Meta(description="When.")] = None
    verify: Annotated[bool, Meta(description="Prove it.")] = False
    charts: Annotated[bool, Meta(description="Draw it.")] = True


def done(run: Any) -> Report:
    return Report(
        summary=f"looked at {Path(run.url).name}",
        figures={"rows": np.int64(1234), "share": 0.25, "until": NOW},
        tables=[Table("Slowest", ("queue", "seconds", "sample"), [("orders", 1.5, b"\x00\xff"), ("mail", None, None)])],
        files=[str(run.out / "table.parquet")],
        notes=[f"top {run.options.top}, by {', '.join(run.options.by)}"],
    )


TOY = Pipeline("toy", "Does nothing.", "It reads nothing and writes nothing.", Choices, done)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pipeline that needs no Spark, and a directory to run it over."""

    @contextmanager
    def started(app: str, **_: Any) -> Iterator[None]:
        yield None

    module = type(sys)("penstock.spark.pipelines.toy")
    module.__spec__ = json.__spec__
    module.PIPELINE = TOY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(runner.MODULES, "toy", "toy")
    monkeypatch.setattr(spark_session, "started", started)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def test_values_are_read_as_their_options_say():
    given: dict[str, Any] = {
        "top": "3",
        "gap_seconds": "5m",
        "part_bytes": "1MiB",
        "by": ["key", "queue"],
        "at": "-1h",
        "verify": True,
    }

    found = parse_options(Choices, given, now=NOW)

    assert (found.top, found.gap_seconds, found.part_bytes, found.by) == (3, 300.0, 2**20, ("key", "queue"))
    assert (found.at, found.verify, found.every) == (datetime(2030, 1, 31, 11, tzinfo=UTC), True, "hour")
    assert parse_options(Choices, {"part_bytes": "none"}).part_bytes is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top": "many"}, "--top: 'many' is not a whole number of 1 or more"),
        ({"top": "0"}, "--top: '0' is not a whole number of 1 or more"),
        ({"every": "minut"}, r"--every: 'minut' is not one of .*minute.* \(did you mean 'minute'\?\)"),
        ({"gap_seconds": "long"}, "--gap-seconds: 'long' is not a duration"),
        ({"part_bytes": "big"}, "--part-bytes: 'big' is not a size"),
        ({"at": "noon"}, "--at: 'noon' is not a time"),
        ({"topp": "1"}, r"--topp: there is no such option \(did you mean 'top'\?\)"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_option(given, message):
    with pytest.raises(InvalidField, match=message):
        parse_options(Choices, given, now=NOW)


def test_every_shipped_pipeline_is_complete_and_hides_no_flag_of_the_command():
    common = {"--queue", "--since", "--until", "--out", "--master", "--conf", "--url", "--context", "--json", "--help"}
    for name, pipeline in zip(runner.names(), runner.shipped(), strict=True):
        options = option_list(pipeline.options)
        assert pipeline.name == name
        assert pipeline.summary
        assert pipeline.explanation
        assert [option.flag for option in options if option.flag in common] == []
        assert [option.flag for option in options if not option.about] == []


def test_listing_and_explaining_import_no_spark():
    script = "import sys; from penstock.cli import main; main(['pipeline', 'list']); print('pyspark' in sys.modules)"

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.splitlines()[-1] == "False"


def test_the_list_names_each_pipeline_and_what_it_does(run, toy):
    assert ["toy", "Does", "nothing."] in [line.split() for line in run("pipeline", "list").out.splitlines()]
    assert {"name": "toy", "summary": "Does nothing."} in run("pipeline", "list", "--json").json


def test_an_unknown_pipeline_is_answered_with_the_closest_one(run, toy):
    found = run("pipeline", "explain", "toi")

    assert found.code == 1
    assert "there is no pipeline 'toi'" in found.err
    assert "a function of your own is named module:function; did you mean 'toy'?" in found.err


def test_an_explanation_lists_the_options(run, toy):
    shown = run("pipeline", "explain", "toy").out

    assert "It reads nothing and writes nothing." in shown
    assert "--gap-seconds DURATION" in shown
    assert "So many rows." in shown
    assert run("pipeline", "explain", "toy", "--json").json["options"][0]["choices"] == ["minute", "hour"]


def test_an_explanation_says_what_must_be_given(run):
    found = run("pipeline", "explain", "replay")

    assert "penstock pipeline run replay --url ./data --to VALUE\n" in found.out
    assert "--to VALUE             required" in found.out


def test_the_help_of_a_run_has_the_flags_of_the_pipeline(run, toy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    with_name, without = run("pipeline", "run", "toy", "--help").out, run("pipeline", "run", "--help").out

    assert "--gap-seconds" in with_name
    assert "--no-charts" in with_name
    assert "--gap-seconds" not in without


def test_a_run_hands_its_flags_over_and_tells_what_was_done(run, toy):
    words = ("pipeline", "run", "--url", "data", "toy", "--top", "3", "--by", "key", "--by", "queue", "--no-charts")
    found = run(*words)

    assert found.code == 0, found.err
    assert "toy: looked at data" in found.out
    assert "1,234" in found.out
    assert "pipelines/toy/table.parquet" in found.out
    assert "top 3, by key, queue" in found.out
    document = run(*words, "--json").json
    assert (document["pipeline"], document["figures"]["rows"], document["out"]) == ("toy", 1234, "pipelines/toy")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("toy", "--url", "data", "--top", "many"), 1, "--top: 'many' is not a whole number of 1 or more"),
        (("toy", "--url", "data", "--tip", "1"), 1, "there is no option --tip"),
        (("toy", "--url", "data", "--conf", "memory=4g"), 1, "--conf: 'memory=4g' is not a Spark setting"),
        (("toy", "--url", "data", "--since", "noon"), 1, "'noon' is not a time"),
        (("toy", "--url", "nowhere"), 4, "there is no directory nowhere"),
        ((), 1, "NAME is missing"),
    ],
)
def test_a_wrong_command_line_starts_nothing(run, toy, words, code, message):
    found = run("pipeline", "run", *words)

    assert (found.code, message in found.err) == (code, True), found.err
    assert not (toy / "pipelines").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollup", "--key-prefix", ""), "--key-prefix: it is empty"),
        (("replay", "--to", "again"), "queue: name the queue whose messages to replay"),
        (("replay", "--to", "again", "-q", "a", "--per-second", "0"), "--per-second: 0 is not more than 0"),
        (("replay", "--to", "a/b", "-q", "a"), "a/b"),
        (("replay", "--to", "again", "-q", "a", "--id", "a/b"), "a/b"),
        (("replay", "--to", "again", "-q", "a", "--archive", "nowhere"), "archive: no archive in nowhere"),
        (("backtest", "--handler", "json:loads"), "queue: name the queue"),
        (("backtest", "--handler", "json", "-q", "a"), "handler: 'json' is not a function"),
        (("backtest", "--handler", "nowhere:handle", "-q", "a"), "No module named 'nowhere'"),
        (("window", "--spec", "nowhere.toml"), "spec: there is no file nowhere.toml"),
        (("window", "--spec", "nowhere.toml", "-q", "a"), "queue: the spec names the queue"),
        (("traces", "--trace", " "), "--trace: it is empty"),
        (("archive", "--since", "-1h"), "since, until: an archive must not have gaps"),
    ],
)
def test_options_that_a_pipeline_refuses_start_no_spark(run, toy, monkeypatch, words, message):
    monkeypatch.setattr(spark_session, "started", None)

    found = run("pipeline", "run", *words, "--url", "data")

    assert (found.code, message in found.err) == (1, True), found.err
    assert not (toy / "pipelines").exists()


def test_a_list_of_values_is_what_a_tuple_is():
    """What a run was asked for is compared with what an earlier one was, which comes back from JSON."""
    options = ReplayOptions(to="again", key=["c1"])  # type: ignore[arg-type]

    assert options == ReplayOptions(to="again", key=("c1",))
    assert msgspec.json.decode(msgspec.json.encode(options), type=ReplayOptions) == options


def test_the_status_tells_what_earlier_runs_did(run, toy):
    assert run("pipeline", "status")[:2] == (0, "")
    run("pipeline", "run", "toy", "--url", "data", "--top", "3")
    keep(
        Path("pipelines/toy"),
        Record(pipeline="toy", url="data", started_at=NOW, seconds=2.0, error="the disk is full"),
    )

    shown = run("pipeline", "status")

    assert shown.code == 0
    assert "looked at data" in shown.out
    assert "failed: the disk is full" in shown.out
    assert "pipelines/toy/table.parquet" in shown.out
    first = run("pipeline", "status", "toy", "--json").json[0]
    assert (first["options"], first["report"]["figures"]["rows"]) == ({"top": 3}, 1234)


def test_only_the_last_runs_are_kept(tmp_path):
    for number in range(25):
        keep(tmp_path, Record(pipeline="toy", url=str(number), started_at=NOW, seconds=1.0))

    assert [record.url for record in records(tmp_path)] == [str(number) for number in range(5, 25)]
    (tmp_path / "runs.json").write_text("not an account")
    keep(tmp_path, Record(pipeline="toy", url="25", started_at=NOW, seconds=1.0))
    assert [record.url for record in records(tmp_path)] == ["25"]


def test_two_runs_in_one_directory_exclude_each_other(run, toy):
    with locked(Path("pipelines/toy")):
        found = run("pipeline", "run", "toy", "--url", "data")

    assert "another run is in progress in pipelines/toy" in found.err


def test_a_directory_with_the_files_of_another_pipeline_is_left_alone(run, toy):
    other = Record(pipeline="archive", url="data", started_at=NOW, seconds=1.0, report=Report(summary="archived"))
    keep(Path("theirs"), other)

    found = run("pipeline", "run", "toy", "--url", "data", "--out", "theirs")

    assert (found.code, "theirs contains files of the pipeline archive" in found.err) == (1, True), found.err
    assert [record.pipeline for record in records(Path("theirs"))] == ["archive"]


def test_the_account_has_no_plans_of_spark(toy):
    def fails(run: Any) -> Report:
        raise ValueError("[A_B.C] no such column. SQLSTATE: 42703;\n'Project ['nosuch]\n+- Relation")

    nothing: Any = None  # it is not used
    made = Run(nothing, "data", options=Choices(), out=Path("out"))
    with pytest.raises(ValueError, match="no such column"):
        execute(Pipeline("toy", "", "", Choices, fails), made)

    assert [record.error for record in records(Path("out"))] == ["ValueError: no such column."]


def test_state_is_replaced_as_a_whole_and_damage_is_named(tmp_path):
    path = tmp_path / "deep" / "state.json"
    assert read_state(path, dict[str, int]) is None

    write_state(path, {"orders": 7})

    assert read_state(path, dict[str, int]) == {"orders": 7}
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]
    path.write_text("{")
    with pytest.raises(InvalidField, match=r"state\.json has no state"):
        read_state(path, dict[str, int])


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_columns():
    widths, numeric = [12, 7, 11, 11, 11, 11], [False, False, True, True, True, True]

    assert blocks(widths, numeric, 68) == [[0, 1, 2, 3, 4, 5]]
    assert blocks(widths, numeric, 60) == [[0, 1, 2, 3, 4], [0, 5]]
    assert blocks(widths, numeric, 10) == [[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]]
    # Long text is wrapped rather than put below.
    assert blocks([8, 200, 20], [False, False, True], 66) == [[0, 1, 2]]


def test_only_the_last_column_of_runs_is_cut_at_the_edge_of_the_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")

    output.write(
        output.table(("started", "took", "what"), [("2030-01-31T12:00:00Z", "1s", "x" * 200)], has_excerpt=True)
    )

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["started", "took", "what"]
    assert row.startswith("2030-01-31T12:00:00Z")
    assert len(row) <= 60
    assert row.endswith("x…")
