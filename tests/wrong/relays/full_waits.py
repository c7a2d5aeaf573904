"""Wrong: finds no place at once, and says so after the timeout."""

from __future__ import annotations

import time

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4,)


class Relay(Learner):
    def refuse_full(self, tx: Tx) -> Tx:
        time.sleep(self.options.timeout)
        return super().refuse_full(tx)


if __name__ == "__main__":
    run(Relay)
