"""`penstock audit`: list and verify, at a broker's and at a data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.batch import Batch
from penstock.delivery.entries import Push
from penstock.embedded.session import Session
from penstock.errors import QueueNotFound
from penstock.model import AUDIT_QUEUE
from penstock.model_audit import AuditFilter, encode_record


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A directory whose audit log is partly sealed."""
    with penstock.open(tmp_path / "data", audit=True) as ps:
        ps.create_queue("orders", max_attempts=3)
        ps.queue("orders").pause()
        ps.seal()
        with pytest.raises(QueueNotFound):
            ps.queue("nowhere").purge()
    return str(tmp_path / "data")


def forge(data: str, old: bytes, new: bytes) -> None:
    """Append all records once more, one of them changed."""
    session = Session(data)
    number = session.shard.core.by_name[AUDIT_QUEUE].id
    payloads = [encode_record(record).replace(old, new) for record in session.audit.find(AuditFilter(), 100)[::-1]]
    batch = Batch.build(payloads)
    session.confirm(
        session.shard.change(lambda now: [Push(number, now, [(0, len(payloads), len(payloads))], batch.data)])
    )
    session.close()


def test_records_are_listed_newest_first(data, run):
    result = run("audit", "--url", data)
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[4] for line in lines[1:]] == ["purge", "seal", "pause", "create_queue"]
    assert "queue_not_found" in lines[1]
    assert run("audit", "list", "--url", data).out == result.out


def test_a_record_is_about_the_first_argument_as_declared(tmp_path, run):
    with penstock.open(tmp_path / "data", audit=True) as ps:
        ps.access.create_key("shop", ["push:mail"], expires_seconds=2_592_000)
    listed = run("audit", "--url", str(tmp_path / "data")).out

    assert " shop " in listed
    assert "2592000" not in listed


def test_records_are_filtered(data, run):
    assert [record["what"] for record in run("audit", "list", "--what", "pause", "--url", data, "--json").json] == [
        "pause"
    ]
    assert len(run("audit", "list", "--outcome", "failed", "--url", data, "--json").json) == 1
    assert len(run("audit", "list", "-n", "2", "--url", data, "--json").json) == 2
    assert len(run("audit", "list", "--since", "-1h", "--url", data, "--json").json) == 4
    nobody = run("audit", "list", "--who", "nobody", "--url", data)
    assert nobody[:2] == (0, "")


@pytest.mark.parametrize("where", ["--url", "--data"])
def test_a_whole_chain_is_confirmed(where, data, run):
    result = run("audit", "verify", where, data)
    assert result.code == 0
    assert "the audit log is intact: 4 records" in result.out
    assert run("audit", "verify", where, data, "--json").json["head"] in result.out


@pytest.mark.parametrize("where", ["--url", "--data"])
def test_a_forged_record_is_named_and_gives_exit_code_2(where, data, run):
    forge(data, b'"pause"', b'"peek"')
    result = run("audit", "verify", where, data)
    assert result.code == 2
    assert "record 5 was changed" in result.out


def test_a_directory_without_a_log_has_a_whole_chain(tmp_path, run):
    with penstock.open(tmp_path / "data") as ps:
        ps.create_queue("orders")
    assert run("audit", "verify", "--data", str(tmp_path / "data")).code == 0
    assert run("audit", "--url", str(tmp_path / "data"))[:2] == (0, "")
