"""Wrong: the place is not given back when the call came to no reply."""

from __future__ import annotations

import threading

from wrong.relays.learner import Learner, run

FAILS_AT = (4,)


class Relay(Learner):
    call = threading.local()

    def report(self, target: str, code: str) -> None:
        super().report(target, code)
        self.call.lost = code in ("E901", "E902")

    def give_back(self, target: str) -> None:
        if not getattr(self.call, "lost", False):
            super().give_back(target)


if __name__ == "__main__":
    run(Relay)
