#!/usr/bin/env python3
"""The relay: JSON lines in, one reply per line out; a circuit breaker and a limit of calls in flight per target.

    python breaker/relay.py --fail-threshold 3 --reset-timeout 5 --max-inflight 4 transactions.jsonl

It is `eaimw relay` with breaker.log beside this file. `--help` tells the options.
"""

import sys
from pathlib import Path


def main(argv=None):
    """Run the relay with these arguments (None: the process's own). Ends with SystemExit, as a program does."""
    from eaimw.cli.relay import LOG_NAME, relay

    here = Path(__file__).resolve().parent
    relay.main(args=argv, prog_name="relay.py", obj=here / LOG_NAME)


if __name__ == "__main__":
    # This folder, first on the path, would make `breaker` the file breaker.py; the checkout's root must stand there.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from eaimw.checkout import use_environment

    use_environment()
    main()
