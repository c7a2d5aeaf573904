"""Wrong: a refusal with E905 is reported to the breaker as a failure."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4,)


class Relay(Learner):
    def refuse_full(self, tx: Tx) -> Tx:
        self.logged(tx["target"], self.breakers[tx["target"]].record_failure)
        return super().refuse_full(tx)


if __name__ == "__main__":
    run(Relay)
