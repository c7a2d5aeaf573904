"""Where a stream of bytes may be cut on its way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from hypothesis import strategies as st

SHORT = 120  # bytes of a stream that is cut at every pair of places
SOME = 60  # ways in which a longer one is cut at many


def segmentations(raw: bytes, short: int = SHORT) -> Iterator[list[bytes]]:
    """Byte by byte; at every place once; at every two places where it is short, else at many, by chance of our own."""
    yield [raw[at : at + 1] for at in range(len(raw))]
    places = range(1, len(raw)) if len(raw) <= 20 * short else sorted(random.Random(1).sample(range(1, len(raw)), SOME))
    for place in places:
        yield cut(raw, [place])
    if len(raw) <= short:
        for two in itertools.combinations(range(1, len(raw)), 2):
            yield cut(raw, [*two])
    else:
        for seed in range(SOME):
            chance = random.Random(seed)
            yield cut(raw, [chance.randrange(len(raw)) for _ in range(chance.randint(2, 40))])


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    """The pieces between these places, in any order; none is empty."""
    edges = sorted({0, len(raw), *(place for place in places if place < len(raw))})
    return [raw[begin:end] for begin, end in itertools.pairwise(edges)]


PLACES = st.lists(st.integers(0, 400), max_size=20)
