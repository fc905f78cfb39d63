"""Compile the protocol buffers: `make proto`.

What comes out is committed: a descriptor set, which any protobuf runtime can load, and the types for checkers. Code
that the compiler writes would refuse every runtime older than the compiler, so there is none.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
OUT = ROOT / "src" / "penstock" / "server" / "grpc" / "generated"
SOURCE = "penstock/v1/queues.proto"


def compile_descriptors(out: Path) -> bytes:
    """The descriptor set of the service, also written to `out`."""
    _run(f"--descriptor_set_out={out}")
    return out.read_bytes()


def compile_types(folder: Path) -> Path:
    """The types of the messages, for checkers, in `folder`."""
    _run(f"--pyi_out={folder}")
    return folder / SOURCE.replace(".proto", "_pb2.pyi")


def _run(option: str) -> None:
    well_known = files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", option, SOURCE]):
        sys.exit("protoc refused the sources")


def main() -> None:
    """Write both into the package."""
    compile_descriptors(OUT / "queues.binpb")
    made = compile_types(OUT)
    made.replace(OUT / "queues_pb2.pyi")
    made.parent.rmdir()
    made.parent.parent.rmdir()


if __name__ == "__main__":
    main()
