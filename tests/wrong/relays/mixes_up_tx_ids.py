"""Wrong: the tx_id of the reply comes from a variable that all threads share: wrong wherever two are under way."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

from fixtures.breaker.relay_base import Tx

FAILS_AT = (4, 5, 6)
latest = ""


class Relay(Learner):
    def handle_tx(self, tx: Tx) -> Tx:
        global latest
        latest = tx["tx_id"]
        return {**super().handle_tx(tx), "tx_id": latest}


if __name__ == "__main__":
    run(Relay)
