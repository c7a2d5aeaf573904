"""Streams of chance: each name has its own, so that what one draws changes nothing for another."""

from __future__ import annotations

import hashlib
from random import Random


def stream(seed: int, name: str) -> Random:
    """The stream of that name under that seed: the same on every machine and in every run."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return Random(int.from_bytes(digest, "big"))
