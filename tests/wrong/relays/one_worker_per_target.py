"""Wrong: one call at a time per target. CLAIM is left alone, but CORE's callers wait for each other."""

from __future__ import annotations

import threading

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4,)
LOCKS = {"CORE": threading.Lock(), "CLAIM": threading.Lock()}


class Relay(Learner):
    def call_target(self, tx: Tx) -> Tx:
        with LOCKS[tx["target"]]:
            return super().call_target(tx)


if __name__ == "__main__":
    run(Relay)
