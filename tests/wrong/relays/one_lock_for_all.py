"""Wrong: a lock of the whole relay is held during each call. Nothing is at the same time: neither full nor alone."""

from __future__ import annotations

import threading

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4, 5)
LOCK = threading.Lock()


class Relay(Learner):
    def call_target(self, tx: Tx) -> Tx:
        with LOCK:
            return super().call_target(tx)


if __name__ == "__main__":
    run(Relay)
