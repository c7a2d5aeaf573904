"""Wrong: one call more than --max-inflight is let through."""

from __future__ import annotations

import argparse

from wrong.relays.learner import Learner, run

FAILS_AT = (4,)


class Relay(Learner):
    def __init__(self, options: argparse.Namespace) -> None:
        options.max_inflight += 1
        super().__init__(options)


if __name__ == "__main__":
    run(Relay)
