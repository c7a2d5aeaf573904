"""For the programs of a checkout: find the environment that they need, or say what to run.

`python breaker/relay.py` and `python fixtures/core.py` are run with whatever `python` there is. This file is
the first of the package that they import; it uses the standard library only and parses on Python 3.9.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NEEDED = ("aiohttp", "click", "httptools", "msgspec", "uvloop")
# Set for a program that was started anew: a .venv that lacks something must not be tried for ever.
_TRIED = "EAIMW_STARTED_ANEW"


def use_environment() -> None:
    """Return if this Python has what eaimw needs; else start anew with the checkout's .venv, or end with a word."""
    tried = os.environ.pop(_TRIED, None)
    if sys.version_info >= (3, 11) and all(importlib.util.find_spec(name) for name in _NEEDED):
        return
    python = ROOT / ".venv" / "bin" / "python"
    if tried is None and python.exists():
        os.environ[_TRIED] = "1"
        with contextlib.suppress(OSError):  # it is no program for this machine: as if it were not there
            os.execv(str(python), [str(python), *sys.argv])
    program = Path(sys.argv[0]).name
    sys.exit(f"{program}: eaimw's environment is not installed; run {ROOT / 'scripts' / 'setup'} once, then this again")
