"""The benchmarks: ratios of medians from alternating runs, so that a machine's noise falls on both sides."""

from __future__ import annotations

import os
import shutil
import sys

from breakers import breakers
from callers import callers
from http_hub import http, long_run
from lines import lines

TABLES = {"breakers": breakers, "callers": callers, "lines": lines, "http": http, "long": long_run}
DEFAULT = ("breakers", "callers", "lines", "http")
NEEDED = {"nginx": "nginx-light", "haproxy": "haproxy", "wrk": "wrk"}


def main(wanted: list[str]) -> None:
    """Each table that was asked for."""
    unknown = [name for name in wanted if name not in TABLES]
    if unknown:
        raise SystemExit(f"bench: there is no table {unknown[0]}; there are {', '.join(TABLES)}")
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"bench: it needs {', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}")
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for name in wanted or DEFAULT:
        print(flush=True)
        TABLES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
