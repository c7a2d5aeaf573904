"""A learner's relay without a mistake."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = ()

if __name__ == "__main__":
    run(Learner)
