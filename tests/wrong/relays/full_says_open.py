"""Wrong: a full target is answered with E904, as if its circuit were open."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx, reply

FAILS_AT = (4,)


class Relay(Learner):
    def refuse_full(self, tx: Tx) -> Tx:
        return reply(tx, "E904")


if __name__ == "__main__":
    run(Relay)
