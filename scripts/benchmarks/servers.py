"""The programs that a benchmark runs: each on a core of its own and a free port, ended with the block."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUNS = 5
START_LIMIT = 10.0  # seconds for a program to listen
END_LIMIT = 2.0  # seconds for a program to end

# Where the hub stands, and where all else does: the target and the load share the other core.
HUB_CORE, OTHER_CORE = 0, -1


class Running(NamedTuple):
    """A program that listens."""

    port: int
    pid: int


CORES = sorted(os.sched_getaffinity(0))


def pin(index: int) -> None:
    """Keep this process on one of the cores that the benchmark may use."""
    os.sched_setaffinity(0, {CORES[index]})


@contextlib.contextmanager
def pinned(index: int) -> Iterator[None]:
    """As `pin`, for the block."""
    pin(index)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def free_port() -> int:
    """One that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], port: int, core: int, log: Path) -> Iterator[Running]:
    """A program from when it listens to the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=lambda: pin(core)
        )
        try:
            deadline = time.monotonic() + START_LIMIT
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"bench: {command[0]} did not start: {log.read_text(errors='replace')[-500:]}")
                time.sleep(0.05)
            yield Running(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_LIMIT)
            except subprocess.TimeoutExpired:  # calls that hang on purpose keep a hub that is asked to end
                process.kill()
                process.wait()


def configured(name: str, folder: Path, **values: object) -> Path:
    """The configuration of this name beside this file, filled in."""
    text = Template((HERE / name).read_text(encoding="utf-8")).substitute(folder=folder, **values)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[int]:
    """The target; gives its port."""
    port = free_port()
    configuration = configured("nginx.conf", folder, port=port)
    command = ["nginx", "-e", str(folder / "nginx.log"), "-c", str(configuration)]
    with running(command, port, OTHER_CORE, folder / "nginx.out"):
        yield port


@contextlib.contextmanager
def haproxy(folder: Path, target: int) -> Iterator[Running]:
    """HAProxy before that target. DOWN is a target that it refuses by itself."""
    port = free_port()
    configuration = configured("haproxy.cfg", folder, port=port, target=target)
    with running(["haproxy", "-f", str(configuration)], port, HUB_CORE, folder / "haproxy.out") as it:
        yield it


@contextlib.contextmanager
def hub(folder: Path, settings: str) -> Iterator[Running]:
    """Our hub with these lines of hub.toml, the admin plane included."""
    port = free_port()
    file = folder / "hub.toml"
    file.write_text(
        f'[hub]\nlisten = "127.0.0.1:{port}"\nbreaker_log = "breaker.log"\n[admin]\nlisten = "127.0.0.1:0"\n{settings}',
        encoding="utf-8",
    )
    command = [str(Path(sys.executable).with_name("eaimw")), "serve", str(file)]
    with running(command, port, HUB_CORE, folder / "hub.out") as it:
        yield it


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A target that takes connections and never answers; gives its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


def processor_seconds(pid: int) -> float:
    """What a process has used so far, in user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Its resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576
