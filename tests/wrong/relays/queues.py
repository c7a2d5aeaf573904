"""Wrong: waits for a place instead of answering E905."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (4,)


class Relay(Learner):
    def take_place(self, target: str) -> bool:
        return self.places[target].acquire()


if __name__ == "__main__":
    run(Relay)
