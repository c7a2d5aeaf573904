"""Wrong: an open circuit is answered with E904, after the target was called all the same."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (3,)


class Relay(Learner):
    def refuse_open(self, tx: Tx) -> Tx:
        self.call_target(tx)
        return super().refuse_open(tx)


if __name__ == "__main__":
    run(Relay)
