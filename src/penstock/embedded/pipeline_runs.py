"""Runs of pipelines as whoever runs them reports them: state, rows, error and a report to look at.

They are kept in one file, so that they are there after a restart: the last `pipeline_runs_max` of each pipeline, and
the newest reports, `pipeline_reports_bytes_max` of them. Pipelines run elsewhere; nothing here starts one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from penstock import limits
from penstock.errors import QueueFull, RunNotFound
from penstock.model import to_datetime
from penstock.replies import PipelineRun, PipelineView
from penstock.storage.disk import Disk

DIRECTORY: Final = "pipelines"
FILE: Final = f"{DIRECTORY}/runs.json"
FORMAT: Final = 1


class _Stored(msgspec.Struct):
    run: PipelineRun
    report: str = ""


class _Document(msgspec.Struct):
    format: int = FORMAT
    pipelines: dict[str, list[_Stored]] = {}  # the newest first


class PipelineRuns:
    """All runs that were reported. Any thread may ask."""

    def __init__(self, disk: Disk | None, now: Callable[[], int]) -> None:
        self._disk, self._now = disk, now
        self._lock = threading.Lock()
        self._document: _Document | None = None

    def put(self, run: PipelineRun, report: str | None) -> PipelineRun:
        """A run has begun, or has ended. None keeps the report that it has."""
        with self._lock:
            document = self._read()
            runs = document.pipelines.get(run.pipeline, [])
            known = next((stored for stored in runs if stored.run.run == run.run), None)
            if known is None and not runs and len(document.pipelines) >= limits.pipelines_max:
                raise QueueFull(
                    f"runs of at most {limits.pipelines_max} pipelines are kept", hint="reuse one of their names"
                )
            started_at = run.started_at or (known.run.started_at if known else None) or to_datetime(self._now())
            kept = report if report is not None else known.report if known else ""
            run = msgspec.structs.replace(run, started_at=started_at, has_report=bool(kept))
            others = [stored for stored in runs if stored is not known]
            newest = sorted([_Stored(run, kept), *others], key=lambda stored: _began(stored.run), reverse=True)
            pipelines = {**document.pipelines, run.pipeline: newest[: limits.pipeline_runs_max]}
            self._write(_Document(pipelines=_bounded(pipelines)))
            return run

    def all(self) -> list[PipelineView]:
        """Each pipeline with its runs, the newest first."""
        with self._lock:
            known = self._read().pipelines
            return [PipelineView(name=name, runs=[item.run for item in runs]) for name, runs in sorted(known.items())]

    def run(self, pipeline: str, run: str) -> PipelineRun:
        """One run."""
        return self._find(pipeline, run).run

    def report(self, pipeline: str, run: str) -> str:
        """The report of a run, as HTML."""
        stored = self._find(pipeline, run)
        if not stored.report:
            hint = "the run wrote none, or newer reports replaced it"
            raise RunNotFound(f"run {run!r} of pipeline {pipeline!r} has no report", hint=hint)
        return stored.report

    def _find(self, pipeline: str, run: str) -> _Stored:
        with self._lock:
            for stored in self._read().pipelines.get(pipeline, ()):
                if stored.run.run == run:
                    return stored
        raise RunNotFound(f"pipeline {pipeline!r} has no run {run!r}")

    def _read(self) -> _Document:
        if self._document is None:
            is_there = self._disk is not None and self._disk.exists(FILE)
            self._document = _Document()
            if is_there and self._disk is not None:
                self._document = msgspec.json.decode(self._disk.read(FILE), type=_Document)
        return self._document

    def _write(self, document: _Document) -> None:
        if self._disk is not None:
            self._disk.make_directory(DIRECTORY)
            self._disk.write_whole(FILE, msgspec.json.encode(document))
        self._document = document


def _began(run: PipelineRun) -> float:
    return 0.0 if run.started_at is None else run.started_at.timestamp()


def _bounded(pipelines: dict[str, list[_Stored]]) -> dict[str, list[_Stored]]:
    """The newest reports, as many as fit; runs without a report cost little."""
    room = limits.pipeline_reports_bytes_max
    newest = sorted(
        (stored for runs in pipelines.values() for stored in runs), key=lambda s: _began(s.run), reverse=True
    )
    dropped: set[int] = set()
    for stored in newest:
        room -= len(stored.report)
        if room < 0 and stored.report:
            dropped.add(id(stored))
    return {
        name: [_without_report(stored) if id(stored) in dropped else stored for stored in runs]
        for name, runs in pipelines.items()
    }


def _without_report(stored: _Stored) -> _Stored:
    return _Stored(msgspec.structs.replace(stored.run, has_report=False))
