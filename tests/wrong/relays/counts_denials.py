"""Wrong: counts business denials (B2xx) as failures."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_failure(self, code: str) -> bool:
        return super().is_failure(code) or code.startswith("B2")


if __name__ == "__main__":
    run(Relay)
