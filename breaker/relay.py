#!/usr/bin/env python3
"""The relay: JSON lines in, one reply per line out; a circuit breaker and a limit of calls in flight per target.

    python breaker/relay.py --fail-threshold 3 --reset-timeout 5 --max-inflight 4 transactions.jsonl

It is `eaimw relay` with breaker.log beside this file. `--help` tells the options.
"""

from __future__ import annotations

import os
import signal
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


def main(argv: list[str] | None = None) -> None:
    """Run the relay with these arguments (None: the process's own). Ends with SystemExit, as a program does."""
    from eaimw.cli.logs import BREAKER_LOG
    from eaimw.cli.relay import relay

    relay.main(args=argv, prog_name="relay.py", obj=os.path.join(HERE, BREAKER_LOG))


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends it without a traceback
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a log to make anew
    # This folder, first on the path, would make `breaker` the file breaker.py; the checkout's root must stand there.
    sys.path[:] = [os.path.dirname(HERE), *(entry for entry in sys.path if os.path.realpath(entry) != HERE)]
    from eaimw.checkout import use_environment

    use_environment()
    try:
        main()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # all is done: what comes now must not make a failure of it
