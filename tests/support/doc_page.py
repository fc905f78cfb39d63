"""The code of a documentation page, run as a reader would: in order, in an empty directory, in one terminal.

- ``python`` that opens with ``# name.py`` is saved under that name; other blocks share their names, and are run.
- ``console`` has commands behind ``$``; what is printed below is compared. One that ends in ``# refused`` must fail.
- ``sh`` and ``bash`` are scripts: each command must succeed.
- ``sql`` is run by the Spark session that earlier blocks have made.
- ``toml``, ``yaml``, ``json`` and ``ini`` must parse, and are saved when they open with ``# name``.
- ``<!-- setup`` up to ``-->`` is Python that readers do not see: what the page takes for granted.
- ``<!-- not run: reason -->`` in the line before a block leaves it at a check of its syntax.

A page that speaks to a broker and starts none gets one. Ports, and what takes as long as the machine, are replaced.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import contextlib
import inspect
import io
import json
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.support.broker_restarts import hold_a_port
from tests.support.dose import NIGHTLY

ROOT: Final = Path(__file__).parent.parent.parent
FENCE: Final = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$|"
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NAMED: Final = re.compile(r"# ([\w.-]+\.\w+)\n")
END: Final = "~~~ that was it: "

# What differs from run to run.
CHANGING: Final = {
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "ID",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z": "TIME",
    r"\b\d+(\.\d+)?(ms|s|m|h|d)(\d\d[smh])?\b": "LONG",
}
# How long a reader waits for a worker: here there may be other things to do.
PATIENCE: Final = {r"timeout=\d+\b": "timeout=100", r"--wait \d+s\b": "--wait 100s"}
SHELLS: Final = ("sh", "bash", "console")
PROSE: Final = ("", "text", "mermaid")


class Block(NamedTuple):
    """One block of code of a page."""

    language: str
    text: str
    reason: str  # why it is not run
    line: int


class Ran(NamedTuple):
    """What a command returned and printed."""

    code: int
    printed: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"] or ("python" if found["setup"] else ""),
            found["setup"] or found["text"] or "",
            found["reason"] or "",
            text.count("\n", 0, found.start()) + 1,
        )
        for found in FENCE.finditer(text)
    ]


def is_code(block: Block) -> bool:
    return block.language not in PROSE


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console, and what each prints."""
    for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = command.partition("\n")
        yield line, expected


def check_syntax(block: Block) -> None:
    """What can be said of a block without running it."""
    if block.language == "python":
        compile_block(block.text, "documentation")
    elif block.language in SHELLS:
        script = "\n".join(line for line, _ in commands(block)) if block.language == "console" else block.text
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)
    elif parser := PARSERS.get(block.language):
        parser(block.text)


def parse_ini(text: str) -> None:
    configparser.ConfigParser(strict=False, interpolation=None).read_string(text)


def parse_yaml(text: str) -> None:
    list(yaml.safe_load_all(text))


PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "toml": tomllib.loads,
    "yaml": parse_yaml,
    "json": json.loads,
    "ini": parse_ini,
}


def compile_block(text: str, name: str) -> Any:
    return compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class Terminal:
    """A bash in a directory, with ports of its own; Python blocks run beside it, in the same directory."""

    def __init__(self, place: Path, ports: dict[str, int]) -> None:
        self.place = place
        self._ports = ports
        self._scripts = 0
        self.names: dict[str, Any] = {"__name__": "__main__"}
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        variables |= {
            "PATH": f"{Path(sys.executable).parent}:{variables['PATH']}",
            "PYTHONPATH": f"{place}:{variables.get('PYTHONPATH', '')}",
            "COLUMNS": "120",
        }
        variables |= self.environment()
        self._serving = (
            f"PENSTOCK_TCP_PORT={ports['7710']} PENSTOCK_HTTP_PORT={ports['7711']} PENSTOCK_GRPC_PORT={ports['7712']}"
        )
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=place, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.type("set -m")

    def environment(self) -> dict[str, str]:
        """What tells the command and the library where the page's broker is, and keeps its keys in the directory."""
        return {
            "PENSTOCK_URL": f"penstock://localhost:{self._ports['7710']}",
            "HOME": str(self.place),
            "XDG_RUNTIME_DIR": str(self.place / "runtime"),
            "XDG_CONFIG_HOME": str(self.place / "config"),
            "XDG_STATE_HOME": str(self.place / "state"),
        }

    def here(self, text: str) -> str:
        """A text with the ports of this terminal, and with patience."""
        for port, mine in self._ports.items():
            text = text.replace(f":{port}", f":{mine}")
        for pattern, longer in PATIENCE.items():
            text = re.sub(pattern, longer, text)
        return text

    def _adapted(self, line: str) -> str:
        if line == "python count.py" and not NIGHTLY:
            return "python -m py_compile count.py"  # the README's Spark, which tests/spark/test_source.py runs faster
        if line == "penstock dashboard":
            return f"penstock dashboard --url http://localhost:{self._ports['7711']}"
        if line.startswith("pip install "):
            return "python -c 'import penstock'"  # the tests have it from the clone
        if line.startswith("penstock serve") and line.rstrip().endswith("&"):
            serve = f"env -u PENSTOCK_URL {self._serving} {line.rstrip().removesuffix('&')} --json"
            # Its first line says that it listens; without one it did not start.
            return (
                f"rm -f ready; mkfifo ready; {serve} > ready 2>> serve.log &\n"
                "exec 3< ready; read -r -u 3 || { cat serve.log; false; }"
            )
        if line.rstrip().endswith("&"):
            return f"{line.rstrip().removesuffix('&')} >> background.log 2>&1 &"
        return line

    def type(self, lines: str) -> Ran:
        """Run lines as they are typed; the code of the last, and what they print."""
        adapted = "\n".join(map(self._adapted, self.here(lines).split("\n")))
        return self._send(adapted)

    def script(self, text: str) -> Ran:
        """Run lines of which each must succeed; a failure ends the terminal."""
        self._scripts += 1
        name = self.place / f".script-{self._scripts}"
        name.write_text("\n".join(map(self._adapted, self.here(text).split("\n"))), encoding="utf-8")
        return self._send(f"set -e\n. {name}\nset +e")

    def _send(self, text: str) -> Ran:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.write(f'{text}\necho "{END}$?"\n')
            self._bash.stdin.flush()
        printed: list[str] = []
        for line in iter(self._bash.stdout.readline, ""):
            if END in line:
                before, _, code = line.partition(END)
                return Ran(int(code), "".join([*printed, before]))
            printed.append(line)
        return Ran(self._bash.wait() or 1, "".join(printed))

    def python(self, text: str, name: str) -> None:
        """Run a block in this process, with the names of the blocks before it; `await` is allowed."""
        with contextlib.redirect_stdout(io.StringIO()):
            found = eval(compile_block(self.here(text), name), self.names)
            if inspect.iscoroutine(found):
                asyncio.run(found)

    def leave(self) -> None:
        if self._bash.poll() is None:
            self._bash.communicate("kill $(jobs -p) 2>/dev/null; wait\n", timeout=60)
        else:
            self._bash.communicate()


@contextmanager
def terminal_in(place: Path) -> Iterator[Terminal]:
    rng = random.Random(str(place))
    with contextlib.ExitStack() as stack:
        ports = {port: stack.enter_context(hold_a_port(rng)).getsockname()[1] for port in ("7710", "7711", "7712")}
        (place / "runtime").mkdir(mode=0o700)
        terminal = Terminal(place, ports)
        stack.callback(terminal.leave)
        yield terminal


def plain(text: str) -> list[str]:
    """Output without what differs from run to run, nor how columns are set."""
    for pattern, name in CHANGING.items():
        text = re.sub(pattern, name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def run_block(terminal: Terminal, block: Block, where: str) -> None:
    name = NAMED.match(block.text)
    check_syntax(block)
    if block.reason:
        return
    if name is not None:
        (terminal.place / name[1]).write_text(terminal.here(block.text), encoding="utf-8")
    elif block.language == "python":
        terminal.python(block.text, where)
    elif block.language == "console":
        run_console(terminal, block, where)
    elif block.language == "sql":
        for statement in block.text.split(";"):
            terminal.names["spark"].sql(statement).collect()
    elif block.language in SHELLS:
        ran = terminal.script(block.text)
        assert ran.code == 0, f"{where}: {ran.printed}"
    else:
        assert block.language in PARSERS, f"{where}: nobody runs {block.language!r}"


def run_console(terminal: Terminal, block: Block, where: str) -> None:
    for line, expected in commands(block):
        ran = terminal.type(line)
        if line.endswith("# refused"):
            assert ran.code != 0, f"{where}: {line}"
        elif expected:
            assert plain(ran.printed) == plain(expected), f"{where}: {line}"
        else:
            assert ran.code == 0, f"{where}: {line}: {ran.printed}"


def wants_broker(page: list[Block]) -> bool:
    """Whether a page speaks to a broker, and starts none itself."""
    run = [block.text for block in page if not block.reason and is_code(block)]
    speaks = any(re.search(r"localhost:771\d|^(?:\$ )?penstock \w|\| penstock ", text, re.MULTILINE) for text in run)
    return speaks and not any(re.search(r"^(\$ )?penstock serve", text, re.MULTILINE) for text in run)


def run_page(page: Path, place: Path, *, times: int = 1) -> None:
    """Run all blocks of a page, in order; again in the same terminal where a page promises that."""
    found = blocks(page)
    with terminal_in(place) as terminal:
        if wants_broker(found):
            started = terminal.type("penstock serve --data ./broker-data &")
            assert started.code == 0, started.printed
        with here(terminal):
            for _ in range(times):
                for block in filter(is_code, found):
                    run_block(terminal, block, f"{page.relative_to(ROOT)}, line {block.line}")


@contextmanager
def here(terminal: Terminal) -> Iterator[None]:
    """This process in the directory and the environment of a terminal, for Python blocks."""
    before, modules, path = dict(os.environ), set(sys.modules), list(sys.path)
    with contextlib.chdir(terminal.place):
        os.environ.update(terminal.environment())
        sys.path.insert(0, str(terminal.place))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(terminal.place) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), Path.cwd())
