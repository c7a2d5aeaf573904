"""Wrong: no limit to the calls in flight."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (4,)


class Relay(Learner):
    def take_place(self, target: str) -> bool:
        return True

    def give_back(self, target: str) -> None:
        pass


if __name__ == "__main__":
    run(Relay)
