"""Wrong: one breaker for all targets, so that CORE's failures refuse CLAIM's transactions."""

from __future__ import annotations

import argparse

from wrong.relays.learner import Learner, run

FAILS_AT = (5,)


class Relay(Learner):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.breakers = dict.fromkeys(self.breakers, self.make_breaker())


if __name__ == "__main__":
    run(Relay)
