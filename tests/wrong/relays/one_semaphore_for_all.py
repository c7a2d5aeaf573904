"""Wrong: one semaphore for all targets, so that CORE's slow calls use up CLAIM's places."""

from __future__ import annotations

import argparse
import threading

from wrong.relays.learner import Learner, run

FAILS_AT = (5,)


class Relay(Learner):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.places = dict.fromkeys(self.places, threading.BoundedSemaphore(options.max_inflight))


if __name__ == "__main__":
    run(Relay)
