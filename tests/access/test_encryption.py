"""Encrypted queues: nothing that users wrote is in a file, and all of it comes back."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import operations as ops
from penstock.access import encryption
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import SystemClock
from penstock.embedded.session import Session
from penstock.envelopes import new_task_id
from penstock.errors import BadSettings, Damaged, InvalidField, StorageError
from penstock.model import Message
from penstock.model_tasks import TaskFilter, TaskSubmission
from penstock.seals import ERASED
from penstock.storage.disk import RealDisk
from tests.support.task_rig import Rig

KEY = bytes(range(32))
CANARY = "c4n4ry-5f1d"


@contextmanager
def opened(path: Path, key: bytes = KEY, **options: Any) -> Iterator[Penstock]:
    with penstock.open(path, master_key=key, durability="os", **options) as ps:
        yield ps


def inside(ps: Penstock) -> Session:
    session: Session = ps._session.session  # type: ignore[attr-defined]
    return session


def seal(ps: Penstock) -> None:
    shard = inside(ps).shard
    shard.journal.rotate()
    ps.seal()
    assert shard.store is not None
    assert shard.store.sealed_sequence == shard.journal.sequence


def leaks(path: Path, word: str = CANARY) -> list[str]:
    """Files that hold the canary."""
    found = []
    for file in path.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # the storekeeper removes files meanwhile
            if word.encode() in file.read_bytes():
                found.append(str(file.relative_to(path)))
    return found


def secret_message(number: int) -> Message:
    return Message(
        payload=f"{CANARY} {number}".encode(),
        key=f"key {CANARY} {number % 3}",
        headers={f"h-{CANARY}": f"v {CANARY}"},
        dedup_key=f"dedup {CANARY} {number}",
        priority=number % 250,
    )


def test_nothing_of_an_encrypted_queue_is_in_any_file(tmp_path):
    with opened(tmp_path) as ps:
        queue = ps.create_queue("orders", encryption=True, max_attempts=2, backoff_base_seconds=0)
        queue.push(f"{CANARY} alone")
        queue.push_many([secret_message(number) for number in range(40)])
        queue.push_many([Message(payload=CANARY, delay=3600, ttl=7200)])
        for number, delivery in enumerate(queue.lease(20)):
            if number % 2:
                delivery.nack(error=error_of(number))
            else:
                delivery.reject(error_of(number))
        inside(ps).checkpoint()
        assert leaks(tmp_path) == []
        seal(ps)
        assert leaks(tmp_path) == []
        queue.push_many([secret_message(number) for number in range(40, 50)])
    assert leaks(tmp_path) == []
    with opened(tmp_path) as ps:
        queue = ps.queue("orders")
        assert all(CANARY in str(letter.payload) for letter in queue.dlq.list())
        assert len(queue.dlq.list()) == 10
        while deliveries := list(queue.lease(7)):
            assert all(CANARY in delivery.payload.decode() for delivery in deliveries)
            for delivery in deliveries:
                delivery.ack()
        seal(ps)
        ps.compact()
    assert leaks(tmp_path) == []
    assert leaks(tmp_path, "orders")  # names are in clear: the search itself works


def error_of(number: int) -> str:
    return f"it failed: {CANARY} {number}"


def test_what_is_not_encrypted_is_found_by_the_same_search(tmp_path):
    with opened(tmp_path) as ps:
        ps.create_queue("orders", encryption=True)
        ps.queue("open").push(CANARY)
        seal(ps)
    assert leaks(tmp_path)


def test_tasks_of_an_encrypted_queue_are_in_no_file(tmp_path):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True, max_attempts=1)
        session = inside(ps)
        rig = Rig(session.shard)
        ids = [new_task_id(session.clock.now()) for _ in range(4)]
        args, kwargs = f'["{CANARY}"]'.encode(), f'{{"to":"{CANARY}"}}'.encode()
        done, failed, waits, running = ids

        def submission(id: str, **more: Any) -> TaskSubmission:
            return TaskSubmission(task_id=id, task_type="mail", queue="q", args=args, kwargs=kwargs, **more)

        rig.submit(submission(done), submission(failed), submission(running))
        session.run(ops.SubmitTasks([submission(waits, depends_on=(running,))]))
        runs = {run.task_id: run for run in rig.lease()}
        session.run(ops.NoteProgress(runs[running].receipt, running, f'{{"at":"{CANARY}"}}'.encode()))
        finishes = [
            runs[done].finish(result=f'"{CANARY}"'.encode()),
            runs[failed].finish("failed", error=error_of(1)),
        ]
        session.run(ops.FinishTasks(finishes))
        assert session.run(ops.FindTask(done))[0].result == f'"{CANARY}"'.encode()
        session.checkpoint()
        assert leaks(tmp_path) == []
        seal(ps)
        assert leaks(tmp_path) == []
    assert leaks(tmp_path) == []
    for rebuilt in (False, True):
        if rebuilt:
            for file in (tmp_path / "catalogue").iterdir():
                file.unlink()
        with opened(tmp_path) as ps:
            found = {id: inside(ps).run(ops.FindTask(id))[0] for id in ids}
            assert (found[done].args, found[done].kwargs) == (args, kwargs)
            assert found[done].result == f'"{CANARY}"'.encode()
            assert CANARY in found[failed].error
            assert CANARY in found[failed].runs[0].error
            assert found[running].progress == f'{{"at":"{CANARY}"}}'.encode()
            assert (found[waits].args, found[waits].state.value) == (args, "blocked")
            page = inside(ps).run(ops.ListTasks(TaskFilter(argument=CANARY)))[0]
            assert {task.task_id for task in page.tasks} == set(ids)
        assert leaks(tmp_path) == []


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Message,
            payload=st.binary(max_size=300),
            key=st.none() | st.text(max_size=20),
            headers=st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
            trace=st.none() | st.text(max_size=20),
        ),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_what_is_pushed_comes_back_byte_for_byte(tmp_path_factory, messages, sealed):
    path = tmp_path_factory.mktemp("data")
    with opened(path) as ps:
        ps.create_queue("q", encryption=True).push_many(messages)
        if sealed:
            seal(ps)
    with opened(path) as ps:
        found = [(m.payload, m.key, m.headers or None, m.trace) for m in ps.queue("q").lease(100)]
    assert found == [(m.payload, m.key, m.headers or None, m.trace) for m in messages]


def test_plain_and_encrypted_messages_in_one_queue(tmp_path):
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q")
        queue.push(b"before")
        ps.update_queue("q", encryption=True)
        queue.push(CANARY.encode())
        ps.queue("other").push(b"other")
    assert leaks(tmp_path) == []
    assert leaks(tmp_path, "before")
    with opened(tmp_path) as ps:
        seal(ps)
        assert [delivery.payload for delivery in ps.queue("q").lease(10)] == [b"before", CANARY.encode()]
        assert [delivery.payload for delivery in ps.queue("other").lease(10)] == [b"other"]


def test_the_dead_letters_that_are_there_are_encrypted_from_then_on(tmp_path):
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q", max_attempts=1)
        queue.push(b"plain")
        next(iter(queue.lease(1))).reject("why")
        ps.update_queue("q", encryption=True)
        queue.push(CANARY.encode())
        next(iter(queue.lease(1))).reject("why")
    assert leaks(tmp_path) == []
    with opened(tmp_path) as ps:
        assert [letter.payload for letter in ps.queue("q").dlq.list()] == [b"plain", CANARY.encode()]


def test_staged_files_are_encrypted_whoever_writes_them(tmp_path, monkeypatch):
    from penstock.spark.staging import _sealing, _write
    from penstock.storage.staging import Staging, encode_staged, name_for

    data, key_file = tmp_path / "data", tmp_path / "master.key"
    encryption.new_key_file(key_file)
    monkeypatch.setenv("PENSTOCK_MASTER_KEY", str(key_file))
    batch = Batch.build([f"{CANARY} {number}".encode() * 9 for number in range(50)])
    names = [name_for("q", "sink", task, SystemClock().now(), bytes(10)) for task in range(2)]
    with penstock.open(data) as ps:
        ps.create_queue("q", encryption=True)
        whole = b"".join(encode_staged(batch))
        for position in range(0, len(whole), 1000):  # over the wire, in pieces that end anywhere
            inside(ps).run(ops.Stage("q", names[0], position, whole[position : position + 1000]))
        _write(Staging(RealDisk(data)), names[1], batch, sealed=_sealing(str(data), "q"))
        assert leaks(data) == []
        inside(ps).run(ops.CommitSink("q", "sink", 1, tuple(names)))
        found = [delivery.payload for delivery in ps.queue("q").lease(200)]
        assert found == batch.payloads() * 2
    assert leaks(data) == []


@pytest.mark.parametrize("damage", ["journal", "checkpoint"])
def test_a_repair_keeps_what_is_encrypted_and_needs_the_keys(tmp_path, damage):
    from penstock.repair.directory import diagnose, repair
    from penstock.verify import verify

    encrypted_directory(tmp_path)
    with opened(tmp_path) as ps:
        session = inside(ps)
        parent, child = (new_task_id(session.clock.now()) for _ in range(2))
        held: dict[str, Any] = {"task_type": "mail", "queue": "q", "args": f'["{CANARY}"]'.encode()}
        session.run(ops.SubmitTasks([TaskSubmission(task_id=parent, **held)]))
        session.run(ops.SubmitTasks([TaskSubmission(task_id=child, depends_on=(parent,), **held)]))
    with locked(tmp_path) as disk:
        assert verify(disk, 0).problems == []
    if damage == "journal":
        (file,) = (tmp_path / "journal").glob("*.log")
        frames = file.read_bytes().rstrip(b"\0")
        middle = bytearray(file.read_bytes())
        middle[len(frames) - 5] ^= 1  # of the last frame, which says that it was closed
        file.write_bytes(middle)
        (tmp_path / "high-water").unlink()
    for part in (tmp_path / "checkpoints").glob("queue-*.part"):
        part.write_bytes(b"damaged")
    with locked(tmp_path) as disk:
        assert not diagnose(disk, SystemClock().now()).is_sound
        with pytest.raises(StorageError, match="no master key"):
            repair(disk, diagnose(disk, SystemClock().now()), SystemClock(), random.Random(1))
    with locked(tmp_path) as disk:
        ring = encryption.KeyRing(disk, encryption.MasterKey(KEY), SystemClock())
        found = diagnose(disk, SystemClock().now(), keys=ring)
        repair(disk, found, SystemClock(), random.Random(1))
    assert leaks(tmp_path) == []
    with opened(tmp_path) as ps:
        payloads = [delivery.payload for delivery in ps.queue("q").lease(10)]
        assert payloads[:3] == [CANARY.encode()] * 3
        assert len(payloads) == 4
        assert CANARY.encode() in payloads[3]
        assert inside(ps).shard.core.tasks.held


@contextmanager
def locked(path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(path)
    disk.lock()
    try:
        yield disk
    finally:
        disk.close()


# keys that are missing, wrong, damaged, erased


def test_without_a_master_key_no_queue_can_be_encrypted(tmp_path):
    with penstock.open(tmp_path) as ps:
        with pytest.raises(InvalidField, match="no master key is set"):
            ps.create_queue("q", encryption=True)
        ps.create_queue("plain")
        with pytest.raises(InvalidField, match="no master key is set"):
            ps.update_queue("plain", encryption=True)
        assert ps.queues() == ["plain"]


def test_encryption_cannot_be_switched_off(tmp_path):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        with pytest.raises(InvalidField, match="cannot be switched off"):
            ps.update_queue("q", encryption=False)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"}


def encrypted_directory(path: Path) -> None:
    with opened(path) as ps:
        ps.create_queue("q", encryption=True).push_many([CANARY.encode()] * 3)


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["missing", "wrong"])
def test_a_missing_or_wrong_master_key_is_refused_and_nothing_is_lost(tmp_path, key):
    encrypted_directory(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(StorageError, match="master key"):
        penstock.open(tmp_path, master_key=key)
    assert tree(tmp_path) == before
    with opened(tmp_path) as ps:
        assert len(ps.queue("q").lease(5)) == 3


FLIPPED = (b'"queue": 1', b'"queue": 2')
ANOTHER_FORMAT = (b'"format": 1', b'"format": 9')


@pytest.mark.parametrize("damage", [b"", b"{}", b"{nonsense", FLIPPED, ANOTHER_FORMAT])
def test_a_key_file_that_is_damaged_is_refused_and_nothing_is_lost(tmp_path, damage):
    encrypted_directory(tmp_path)
    file = tmp_path / encryption.NAME
    sound = file.read_bytes()
    file.write_bytes(sound.replace(*damage) if isinstance(damage, tuple) else damage)
    assert file.read_bytes() != sound
    with pytest.raises(StorageError, match=r"data_keys\.json"):
        penstock.open(tmp_path, master_key=KEY)
    file.write_bytes(sound)
    with opened(tmp_path) as ps:
        assert len(ps.queue("q").lease(5)) == 3


def test_a_lost_key_file_is_refused(tmp_path):
    encrypted_directory(tmp_path)
    (tmp_path / encryption.NAME).unlink()
    with pytest.raises(StorageError, match=r"data key .* is unknown"):
        penstock.open(tmp_path, master_key=KEY)


def test_a_bit_flip_in_a_ciphertext_is_damage_not_garbage(tmp_path):
    from penstock.storage.sealed_frames import FrameSeals

    encrypted_directory(tmp_path)
    with opened(tmp_path) as ps:
        shard = inside(ps).shard
        seals = shard.frame_seals
        assert isinstance(seals, FrameSeals)
        blob = seals.seals.seal(1, b"content", b"about")
        for place in (4, 25, 40, len(blob) - 1):
            flipped = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
            with pytest.raises(StorageError):
                seals.seals.open(flipped, b"about")
        with pytest.raises(Damaged):
            seals.seals.open(blob, b"another")
        assert seals.seals.open(blob, b"about") == b"content"


def test_a_frame_whose_ciphertext_changed_is_refused(tmp_path, monkeypatch):
    from penstock.storage import frames, journal_files

    encrypted_directory(tmp_path)
    monkeypatch.setattr(journal_files, "scan", lambda *a, **k: flipped_scan(frames.scan(*a, **k)))
    with pytest.raises(Damaged, match="has changed since"):
        penstock.open(tmp_path, master_key=KEY)


def flipped_scan(scan: Any) -> Any:
    """A scan in which a bit of the longest frame's ciphertext is another, as if its checksum had been made to match."""
    data = bytearray(scan.data)
    ends = [*scan.positions[1:], scan.end_position]
    _, end = max(zip(scan.positions, ends, strict=True), key=lambda bounds: bounds[1] - bounds[0])
    data[end - 30] ^= 1
    object.__setattr__(scan, "data", memoryview(bytes(data)))
    return scan


@pytest.mark.parametrize("sealed", [False, True])
def test_an_erased_key_leaves_places_counters_and_a_mark(tmp_path, sealed):
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q", encryption=True)
        queue.push_many([secret_message(number) for number in range(5)])
        ps.queue("other").push(b"other")
        if sealed:
            seal(ps)
        ring = inside(ps).key_ring
        assert ring is not None
        assert ring.erase(inside(ps).shard.number_of("q") or 0) == 2
    with opened(tmp_path) as ps:
        queue = ps.queue("q")
        queue.push(b"after")
        assert queue.stats().messages == 6
        deliveries = list(queue.lease(10))
        marks = [dict(delivery.headers or {}).get(ERASED) is not None for delivery in deliveries]
        assert sorted(marks) == [False, *[True] * 5]
        assert {delivery.payload for delivery in deliveries} == {b"", b"after"}
        for delivery in deliveries:
            delivery.ack()
        assert [delivery.payload for delivery in ps.queue("other").lease(1)] == [b"other"]
        seal(ps)
    assert leaks(tmp_path) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_a_search_finds_what_is_encrypted_and_nothing_of_it_once_its_keys_are_erased(tmp_path, sealed):
    filters: list[dict[str, Any]] = [{"text": f"{CANARY} 3"}, {"key": f"key {CANARY} 0"}]
    filters += [{"headers": {f"h-{CANARY}": f"v {CANARY}"}}]
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q", encryption=True)
        queue.push_many([secret_message(number) for number in range(5)])
        if sealed:
            seal(ps)
        assert [len(queue.search(**each).messages) for each in filters] == [1, 2, 5]
        ring = inside(ps).key_ring
        assert ring is not None
        ring.erase(inside(ps).shard.number_of("q") or 0)
    with opened(tmp_path) as ps:
        queue = ps.queue("q")
        queue.push(f"{CANARY} 3 after")
        pages = [queue.search(**each) for each in filters]
        assert [[message.payload for message in page.messages] for page in pages] == [
            [f"{CANARY} 3 after".encode()],
            [],
            [],
        ]
        assert {page.examined for page in pages} == {6}
        erased = queue.search(limit=10).messages[1:]
        assert [message.payload for message in erased] == [b""] * 5
        assert CANARY not in str(erased)
        assert all(ERASED in (message.headers or {}) for message in erased)
    assert leaks(tmp_path) == []


def test_rotation_and_rewrap(tmp_path):
    new = bytes(reversed(KEY))
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q", encryption=True)
        ring = inside(ps).key_ring
        assert ring is not None
        queue.push(b"one")
        first = {key.id for key in ring.describe({})}
        ring.rotate(1)
        queue.push(b"two")
        states = [key.state for key in ring.describe({1: "q"})]
        assert states == ["old", "current"]
        assert first < {key.id for key in ring.describe({})}
        before = {name: data for name, data in tree(tmp_path).items() if "access" not in name}
        assert ring.rewrap(encryption.MasterKey(new)) == 3
        assert before == {name: data for name, data in tree(tmp_path).items() if "access" not in name}
    with pytest.raises(StorageError, match="does not open"):
        penstock.open(tmp_path, master_key=KEY)
    with opened(tmp_path, new) as ps:
        assert [delivery.payload for delivery in ps.queue("q").lease(5)] == [b"one", b"two"]


def test_a_key_is_rotated_by_its_age(tmp_path):
    from penstock.clock import ManualClock

    clock = ManualClock()
    with opened(tmp_path, clock=clock) as ps:
        queue = ps.create_queue("q", encryption=True)
        queue.push(b"one")
        clock.advance(encryption.PERIOD_SECONDS + 1)
        queue.push(b"two")
        ring = inside(ps).key_ring
        assert ring is not None
        assert [key.state for key in ring.describe({})] == ["old", "current"]


# master keys


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "master.key"
    encryption.new_key_file(file)
    assert file.stat().st_mode & 0o777 == 0o600
    encryption.read_key_file(file)
    file.chmod(0o640)
    with pytest.raises(BadSettings, match="other users can read"):
        encryption.read_key_file(file)
    with pytest.raises(InvalidField, match="already exists"):
        encryption.new_key_file(file)


@pytest.mark.parametrize("text", [b"", b"short", base64.b64encode(bytes(31)), b"\xff" * 44])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path, text):
    file = tmp_path / "master.key"
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(BadSettings):
        encryption.read_key_file(file)


def test_a_command_wraps_and_unwraps(tmp_path):
    program = tmp_path / "kms.py"
    program.write_text(
        textwrap.dedent("""
        import sys
        data = sys.stdin.buffer.read()
        sys.stdout.buffer.write(bytes(byte ^ 85 for byte in data) if sys.argv[1] in ("wrap", "unwrap") else b"")
        """)
    )
    command = f"{sys.executable} {program}"
    data = tmp_path / "data"
    with penstock.open(data, kms_command=command) as ps:
        ps.create_queue("q", encryption=True).push(CANARY.encode())
    assert leaks(data) == []
    with penstock.open(data, kms_command=command) as ps:
        assert [delivery.payload for delivery in ps.queue("q").lease(1)] == [CANARY.encode()]
    with pytest.raises(StorageError, match="kms_command cannot unwrap"):
        penstock.open(data, kms_command=f"{sys.executable} -c 'raise SystemExit(3)'")


class Reversing:
    """A wrapper that stands for a KMS."""

    def wrap(self, data: bytes, /) -> bytes:
        return data[::-1]

    def unwrap(self, wrapped: bytes, /) -> bytes:
        return wrapped[::-1]


def test_an_object_wraps_and_unwraps(tmp_path):
    for turn in range(2):
        with penstock.open(tmp_path, keys=Reversing()) as ps:
            if not turn:
                ps.create_queue("q", encryption=True).push(CANARY.encode())
            assert [delivery.payload for delivery in ps.queue("q").lease(1)] == [CANARY.encode()]
    with penstock.open(tmp_path, kms_command=f"python:{__name__}:Reversing") as ps:
        assert ps.queues() == ["q"]


def test_secrets_are_in_no_repr(tmp_path):
    ring = encryption.KeyRing(RealDisk(tmp_path), encryption.MasterKey(KEY), Session(None).clock)
    key = ring.current(1)
    assert key.secret.hex() not in f"{key!r} {ring!r}"
    assert repr(key.secret) not in f"{key!r} {ring!r}"


def test_a_plain_directory_keeps_its_format_and_an_encrypted_one_has_a_newer_one(tmp_path):
    with opened(tmp_path) as ps:
        ps.queue("plain").push(b"x")
    assert b'"format": 2' in (tmp_path / "PENSTOCK").read_bytes()
    encrypted_directory(tmp_path)
    assert b'"format": 3' in (tmp_path / "PENSTOCK").read_bytes()
    encrypted = os.stat(tmp_path / encryption.NAME)
    assert encrypted.st_mode & 0o777 == 0o600


def test_a_killed_process_loses_nothing_that_was_confirmed(tmp_path):
    program = textwrap.dedent(f"""
        import os, penstock
        ps = penstock.open({str(tmp_path)!r}, master_key={KEY!r})
        queue = ps.create_queue("q", encryption=True)
        for number in range(50):
            queue.push_many([b"{CANARY} %d" % number] * 3)
        print("ready", flush=True)
        os.kill(os.getpid(), 9)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (b"ready\n", -9)
    assert leaks(tmp_path) == []
    with opened(tmp_path) as ps:
        found = [delivery.payload.decode() for delivery in ps.queue("q").lease(1000)]
    assert found == [f"{CANARY} {number}" for number in range(50) for _ in range(3)]


def test_random_bytes_are_used_for_every_seal(tmp_path):
    with opened(tmp_path) as ps:
        queue = ps.create_queue("q", encryption=True)
        shard = inside(ps).shard
        assert shard.frame_seals is not None
        queue.push(b"same")
        sealed = {shard.frame_seals.seals.seal(1, b"same", b"about") for _ in range(100)}
        assert len({blob[20:36] for blob in sealed}) == 100
