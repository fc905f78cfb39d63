"""Compile the protocol buffers: `make proto`.

What comes out is committed: a descriptor set, which any protobuf runtime can load, and the types for checkers. Code
that the compiler writes would refuse every runtime older than the compiler, so there is none.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
OUT = ROOT / "src" / "penstock" / "server" / "grpc" / "generated"
SOURCES = ("queues", "tasks")
# The numbers and the slots of fields: two fifths of the compiler's stubs, and of no use to a type checker.
_UNUSED = re.compile(r" +(?:\w+_FIELD_NUMBER: .*|__slots__ = .*)\n")


def compile_descriptors(source: str, out: Path) -> bytes:
    """The descriptor set of a service, also written to `out`."""
    _run(source, f"--descriptor_set_out={out}")
    return out.read_bytes()


def compile_types(source: str, folder: Path) -> Path:
    """The types of the messages, for checkers, in `folder`."""
    _run(source, f"--pyi_out={folder}")
    types = folder / "penstock" / "v1" / f"{source}_pb2.pyi"
    text = types.read_text(encoding="utf-8")
    text = text.replace("from penstock.v1 import", "from penstock.server.grpc.generated import")
    types.write_text(_UNUSED.sub("", text), encoding="utf-8")
    return types


def _run(source: str, option: str) -> None:
    well_known = files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", option, f"penstock/v1/{source}.proto"]):
        sys.exit("protoc refused the sources")


def main() -> None:
    """Write both into the package."""
    for source in SOURCES:
        compile_descriptors(source, OUT / f"{source}.binpb")
        made = compile_types(source, OUT)
        made.replace(OUT / made.name)
        made.parent.rmdir()
        made.parent.parent.rmdir()


if __name__ == "__main__":
    main()
