"""A simulated target as data: what it can do, how it is over time, how its answers look, and the link to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from eaimw.sim.capacity import Capacity
from eaimw.sim.durations import check_number
from eaimw.sim.forms import FORMS, PLAIN, Form
from eaimw.sim.link import Conditions
from eaimw.sim.modes import Refused, shown
from eaimw.sim.target import Trade
from eaimw.sim.timeline import Timeline

__all__ = ["Backend", "Phases"]

# Conditions of a link, each from its time on.
Phases = Sequence[tuple[float, Conditions]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One simulated target. What is left out is a target that answers well and at once, over a sound link.

    capacity: service time, servers, queue. timeline: its modes over time.
    conditions: of the link to it, each from its time on. forms: the shares of its answers that go out in a form of
    `forms.FORMS`; the rest is plain. down: from when to when its process is gone, in order of time: nobody listens,
    connections end.
    look_up: seconds that the look-up of its name takes, if its URL has one; inf: it hangs.
    make_trade: what it knows of its business; None: by its name that of `bank.TRADES`, else whatever is asked is done.
    """

    capacity: Capacity | None = None
    timeline: Timeline = field(default_factory=Timeline)
    conditions: Phases = ()
    forms: Mapping[str, float] = field(default_factory=dict)
    down: Sequence[tuple[float, float]] = ()
    look_up: float = 0.0
    make_trade: Callable[[], Trade] | None = None

    def __post_init__(self) -> None:
        for name, share in self.forms.items():
            if name not in FORMS:
                raise Refused(f"forms must be of {', '.join(FORMS)}; not {shown(name)}")
            check_number(f"the share of {name}", share, least=0, most=1)
        if sum(self.forms.values()) > 1 + 1e-9:
            raise Refused(f"the shares of forms must not be more than 1 together; not {sum(self.forms.values()):g}")
        for begin, end in self.down:
            check_number("down", begin, least=0)
            check_number("down, until", end, above=begin)
        for (_, end), (begin, _) in pairwise(self.down):
            check_number("down, after the one before", begin, above=end)

    def chooser(self, chance: Random) -> Callable[[], Form]:
        """For `Service`: the form of each answer."""
        if not self.forms:
            return lambda: PLAIN
        forms = [*(FORMS[name] for name in self.forms), PLAIN]
        shares = [*self.forms.values(), max(0.0, 1 - sum(self.forms.values()))]
        return lambda: chance.choices(forms, shares)[0]
