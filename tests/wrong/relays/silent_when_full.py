"""Wrong: a thread that finds no place ends without a reply."""

from __future__ import annotations

import sys

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4,)


class Relay(Learner):
    def refuse_full(self, tx: Tx) -> Tx:
        sys.exit()


if __name__ == "__main__":
    run(Relay)
