"""Wrong: a thread that finds the circuit open ends without a reply. Steps 5 to 7 ask open circuits too."""

from __future__ import annotations

import sys

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (3, 5, 6, 7)


class Relay(Learner):
    def refuse_open(self, tx: Tx) -> Tx:
        sys.exit()


if __name__ == "__main__":
    run(Relay)
