"""Faults of segments that are kept elsewhere, and of readers of a store; and the tests that catch them."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

_CRASHES: Final = ("tests/segments/test_located_crashes.py",)
_READERS: Final = ("tests/segments/test_postgres_readers.py",)
_OWNERS: Final = ("tests/segments/test_owner.py",)

SEGMENT_FAULTS: Final = (
    Fault(
        "upload-not-listed",
        "an object is uploaded before its name is on the list of leftovers",
        "storage/segment_files.py",
        "        self.add_leftovers([name])\n        location.put(key, data)\n",
        "        location.put(key, data)\n",
        _CRASHES,
    ),
    Fault(
        "removal-not-listed",
        "a file leaves the manifest without being on the list of leftovers",
        "storage/manifest.py",
        "        self._disk.add_leftovers(change.gone.files)\n",
        "",
        _CRASHES,
    ),
    Fault(
        "names-used-twice",
        "the second attempt at a seal uploads to the names of the first",
        "storage/segment_files.py",
        "{first_sequence:020d}-{next(self._numbers)}-{self.term}.parquet",
        "{first_sequence:020d}-{number}-{self.term}.parquet",
        _CRASHES,
    ),
    Fault(
        "late-uploads-forgotten",
        "an upload that failed is taken off the list because nothing has arrived yet",
        "storage/manifest.py",
        "            return None if self._disk.is_of_this_opening(name) else 0\n",
        "            return 0\n",
        _CRASHES,
    ),
    Fault(
        "location-gone-is-damage",
        "a location that is not there counts as files that are missing",
        "storage/segment_files.py",
        "        except FileNotFoundError:\n            self.check()\n            raise\n",
        "        except FileNotFoundError:\n            raise\n",
        _CRASHES,
    ),
    Fault(
        "outage-burns-attempts",
        "messages that cannot be read stay leased until the lease ends",
        "embedded/session.py",
        "                self.settle_lease(reply.nonce, RELEASE)\n            raise\n",
        "                pass\n            raise\n",
        ("tests/segments/test_s3.py",),
    ),
    Fault(
        "outage-stops-pushes",
        "a push fails because something that is due needs a message that cannot be read",
        "shard/engine.py",
        "                    return self._without_columns(operation, error)\n",
        "                    raise error\n",
        ("tests/segments/test_s3_trouble.py",),
    ),
    Fault(
        "moved-before-listed",
        "a file is moved and the manifest goes on naming the old one",
        "storage/segments.py",
        "        now.change(Layer(files={copy.name: copy}, extents=new, gone=Gone(files=[name])))\n",
        "        self._disk.remove(name)\n",
        ("tests/segments/test_s3_trouble.py",),
    ),
    Fault(
        "acked-before-read",
        "what is acknowledged on delivery is acknowledged although it cannot be read",
        "embedded/session.py",
        "        self.lease = self._lease_then_ack if self.reads_elsewhere else self.shard.lease\n",
        "        self.lease = self.shard.lease\n",
        ("tests/segments/test_s3.py",),
    ),
    Fault(
        "cache-believed",
        "a block of the cache is not held to its checksum",
        "storage/block_cache.py",
        "    return block if length == len(block) and crc == _crc(name, number, block) else None\n",
        "    return block\n",
        ("tests/segments/test_s3.py",),
    ),
    Fault(
        "cache-unbounded",
        "nothing is ever removed from the cache",
        "storage/block_cache.py",
        "                if self.bytes <= self.bytes_max or not self._sizes:\n",
        "                if True:\n",
        ("tests/segments/test_s3.py",),
    ),
    Fault(
        "reader-believes-before-commit",
        "a reader of a store keeps what it read although its own commit failed",
        "history/history.py",
        "                self._tail = None  # it may have frames that were not made durable\n",
        "                pass\n",
        _READERS,
    ),
    Fault(
        "confirmed-elsewhere",
        "what was read over one connection is confirmed over another, which may lead to another server",
        "history/store_files.py",
        "        if len(connections) > 1:\n",
        "        if False:\n",
        _READERS,
    ),
    Fault(
        "read-only-believes-all",
        "a reader that cannot commit reads up to the end of the journal",
        "history/store_files.py",
        "                return max(_durable_in(row[0]))\n",
        "                return 2**62\n",
        _READERS,
    ),
    Fault(
        "sweep-without-owner",
        "a copy of a data directory removes objects although another directory has the location",
        "storage/location_owner.py",
        "            _require(place.owner(), self._tokens, place)\n        else:",
        "            pass\n        else:",
        _OWNERS,
    ),
    Fault(
        "copy-is-no-other",
        "a copy of a data directory takes the location from its original",
        "storage/location_owner.py",
        "            if stored.place and mine and stored.place != mine:\n",
        "            if False:\n",
        _OWNERS,
    ),
    Fault(
        "owner-before-its-token-is-kept",
        "a token is at the location before the directory has it: after a crash the directory is refused",
        "storage/location_owner.py",
        '        self._disk.write_whole(NAME, msgspec.json.encode(OwnerFile(mine, self._tokens)) + b"\\n")\n'
        "        place.set_owner(self._token)\n",
        "        place.set_owner(self._token)\n"
        '        self._disk.write_whole(NAME, msgspec.json.encode(OwnerFile(mine, self._tokens)) + b"\\n")\n',
        ("tests/segments/test_located_crashes.py",),
    ),
)
