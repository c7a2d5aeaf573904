"""Wrong: an open circuit is answered with E904, after the timeout."""

from __future__ import annotations

import time

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (3,)


class Relay(Learner):
    def refuse_open(self, tx: Tx) -> Tx:
        time.sleep(self.options.timeout)
        return super().refuse_open(tx)


if __name__ == "__main__":
    run(Relay)
