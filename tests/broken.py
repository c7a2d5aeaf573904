"""Hubs that are broken on purpose, and what the checker of the proofs must say of each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from eaimw.sim.prove import Failure, prove

SEEDS = 100

Break = Callable[[pytest.MonkeyPatch], None]


class Breaks(dict[str, tuple[Break, str]]):
    """By name: what breaks the hub, and what must be said of it, as a pattern."""

    def caught_by(self, *words: str) -> Callable[[Break], Break]:
        """What the checker must say when the hub is broken so: one of these."""

        def note(breaks: Break) -> Break:
            self[breaks.__name__] = breaks, "|".join(words)
            return breaks

        return note


def every(number: int) -> Callable[[], bool]:
    """True at each so-manyth call."""
    count: Iterator[int] = itertools.count(1)
    return lambda: next(count) % number == 0


def check_that_it_is_said(words: str) -> None:
    """Within a hundred seeds, after what had happened before it."""
    said = []
    for seed in range(SEEDS):
        proved = prove(seed)
        if isinstance(proved, Failure):
            said.append(proved.why)
            assert proved.story, proved.why
            if re.search(words, proved.why):
                return
    pytest.fail(f"nobody has said {words}; but {said}")
