#!/usr/bin/env python3
"""The relay: JSON lines in, one reply per line out; a circuit breaker and a limit of calls in flight per target.

    python breaker/relay.py --fail-threshold 3 --reset-timeout 5 --max-inflight 4 transactions.jsonl

It is `eaimw relay` with breaker.log beside this file. `--help` tells the options.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Run the relay with these arguments (None: the process's own). Ends with SystemExit, as a program does."""
    from eaimw.cli.relay import LOG_NAME, relay

    here = Path(__file__).resolve().parent
    relay.main(args=argv, prog_name="relay.py", obj=here / LOG_NAME)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends it without a traceback
    # This folder, first on the path, would make `breaker` the file breaker.py; the checkout's root must stand there.
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if Path(entry).resolve() != here)]
    from eaimw.checkout import use_environment

    use_environment()
    main()
