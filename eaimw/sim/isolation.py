"""No target drags another: CLAIM's replies and their times beside a CORE that is well, and beside one that is not.

Where a step of the loop costs no time they are the same to the byte. Where it costs what a processor takes, what CORE
does can only stand before CLAIM in the one line in which all steps wait: by how much is shown, and bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from eaimw.config import HubSettings, TargetSettings
from eaimw.policy import BreakerSettings
from eaimw.sim.capacity import Capacity
from eaimw.sim.durations import Exponential
from eaimw.sim.forms import FORMS
from eaimw.sim.invariants import MOMENT
from eaimw.sim.link import Conditions, Way
from eaimw.sim.load import ClosedLoop, Load, Poisson
from eaimw.sim.modes import MODES, settings_from
from eaimw.sim.play import Backend, play
from eaimw.sim.prove import Failure, Watch, checked, differences, told
from eaimw.sim.record import Record
from eaimw.sim.timeline import Fault, Timeline

__all__ = ["BOUND", "BOUND_BY_BYTES", "COST", "FAULTS", "Isolation", "isolation"]

# Seconds of processor time for one step of the loop: a relayed transaction of some four steps was measured at 40 us.
COST = 10e-6
# Seconds by which an answer of CLAIM may then come earlier or later, and where every byte of CORE is a step of its own,
# which keeps the processor busy for three quarters of the time.
BOUND = 0.0002
BOUND_BY_BYTES = 0.25
BEGIN, END, UNTIL = 1.0, 4.0, 5.0

_LINKS = {
    "refused": Conditions(connect="refuse"),
    "not there": Conditions(connect="swallow"),
    "reset at random": Conditions(reset_within=0.3),
    "byte by byte": Conditions(there=Way(pieces="bytes"), back=Way(pieces="bytes")),
    "stalled": Conditions(back=Way(stall_after=30)),
}
_LIES = [name for name, form in FORMS.items() if not form.is_whole and not name.startswith("too_long")]
_WELL = Capacity(Exponential(0.02))


def _ill(mode: str) -> Backend:
    return Backend(capacity=_WELL, timeline=Timeline((Fault(BEGIN, settings_from({"mode": mode}, "normal"), END),)))


# What ails CORE from second 1 to second 4.
FAULTS: dict[str, Backend] = {
    **{f"mode {mode}": _ill(mode) for mode in MODES if mode != "normal"},
    **{
        # A moment without the target, so that the connections that there are end and new ones meet the link.
        f"link {name}": Backend(
            capacity=_WELL, conditions=((BEGIN, conditions), (END, Conditions())), down=((BEGIN, BEGIN + 0.01),)
        )
        for name, conditions in _LINKS.items()
    },
    "one slow server": Backend(capacity=Capacity(Exponential(0.5), 1, 5)),
    "lies": Backend(capacity=_WELL, forms=dict.fromkeys(_LIES, 1 / len(_LIES))),
    "dead": Backend(capacity=_WELL, down=((BEGIN, END),)),
}


class Isolation(NamedTuple):
    """CLAIM beside one ailing CORE.

    harmed: CORE's own replies that differ from those of a healthy CORE. replies: of CLAIM. unlike: of these, those
    that differ in any byte or in their time. latest: seconds by which one of them came earlier or later, at most.
    bound: seconds that `latest` must stay below; 0: there must be no difference at all.
    """

    fault: str
    harmed: int
    replies: int
    unlike: int
    latest: float
    bound: float

    @property
    def holds(self) -> bool:
        """Is CLAIM not dragged?"""
        return self.latest < self.bound if self.bound else self.unlike == 0


def isolation(fault: str, seed: int = 1, charge: float = 0.0) -> Isolation | Failure:
    """Play both, every invariant checked, and compare. charge: seconds that each step of the loop takes."""
    return told(seed, lambda: _compared(fault, seed, charge))


def _compared(fault: str, seed: int, charge: float) -> Isolation:
    bound = BOUND_BY_BYTES if fault == "link byte by byte" else BOUND
    ill, well = _play(FAULTS[fault], seed, charge, bound), _beside_a_healthy_one(seed, charge)
    times = [[sent.answered_at or 0.0 for sent in record.sent if sent.target == "CLAIM"] for record in (ill, well)]
    latest = max(abs(one - other) for one, other in zip(*times, strict=True))
    harmed = len(differences(ill, well, "CORE"))
    return Isolation(fault, harmed, len(times[0]), len(differences(ill, well)), latest, bound if charge else 0.0)


@lru_cache(maxsize=2)
def _beside_a_healthy_one(seed: int, charge: float) -> Record:
    return _play(Backend(capacity=_WELL), seed, charge, BOUND)


def _play(core: Backend, seed: int, charge: float, wait: float) -> Record:
    """wait: seconds for which a step may have to stand in line where each costs time; so long may a timer ring late."""
    settings = {
        name: TargetSettings(f"http://10.0.0.{number}:80/tx", 1.0, 20, BreakerSettings(5, 1.0))
        for number, name in enumerate(("CORE", "CLAIM"), 1)
    }
    claim = Backend(
        capacity=Capacity(Exponential(0.03), 4, 10),
        timeline=Timeline((Fault(3.0, settings_from({"mode": "flaky", "rate": 0.2}, "normal"), 4.0),)),
        forms={"chunked": 0.2, "closing": 0.1, "cut": 0.05},
    )
    loads = [
        Load("core", "CORE", Poisson(80.0), "BALANCE", {"account": "A-1"}),
        Load("core-too", "CORE", ClosedLoop(30, Exponential(0.2))),
        Load("claim", "CLAIM", Poisson(30.0), "STATUS", {"policy": "P-1", "claim": "C-1"}),
    ]
    backends = {"CORE": core, "CLAIM": claim}

    def played(watch: Watch) -> Record:
        return play(HubSettings(settings), backends, loads, seed=seed, until=UNTIL, charge=charge, watch=watch)

    return checked(played, slack=wait if charge else MOMENT)
