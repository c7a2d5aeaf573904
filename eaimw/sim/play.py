"""One run of the real hub in virtual time: simulated targets behind it, loads before it, and a record of all of it.

    record = play(
        two_targets("http://10.0.0.1:80/tx", "http://10.0.0.2:80/tx"),
        {"CORE": Backend(timeline=Timeline((Fault(3.0, settings_from({"mode": "slow"}, "normal")),)))},
        [Load("a", "CORE", Poisson(20.0)), Load("b", "CLAIM", Constant(10.0))],
        seed=7,
        until=60.0,
    )

The same arguments give the same record, to the byte. Each load, each target, each link has its own stream of chance:
what one draws changes nothing for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eaimw.config import HubSettings
from eaimw.sim.backend import Backend, Phases
from eaimw.sim.callers import Manners, Sent
from eaimw.sim.link import Conditions
from eaimw.sim.load import Load
from eaimw.sim.loop import VirtualLoop
from eaimw.sim.modes import Refused, shown
from eaimw.sim.record import Change, Heard, Record, Sample
from eaimw.sim.stage import Door, Stage

__all__ = ["Backend", "Change", "Conditions", "Heard", "Manners", "Record", "Sample", "Sent", "Stage", "play"]


def play(
    settings: HubSettings,
    backends: Mapping[str, Backend],
    loads: Sequence[Load],
    *,
    seed: int,
    until: float,
    door: Door = "http",
    manners: Mapping[str, Manners] | None = None,
    callers: Mapping[str, Phases] | None = None,
    down_at: float | None = None,
    charge: float = 0.0,
    sample_every: float | None = None,
    watch: Callable[[Stage], Callable[[], object]] | None = None,
) -> Record:
    """Play it. backends: by target; one that is not given answers well. until: seconds in which loads send.

    door: `http`: callers with connections to the real HTTP server; `hub`: each transaction goes to the hub at once.
    manners, callers: how the callers of a load behave (`repeats` and `garbles` at both doors), and the conditions of
    their link to the hub over time; by the load's name.
    down_at: when the hub is told to go down; what comes after it is refused (E911), and at the http door in the end
    nobody listens. charge: seconds of virtual time that each step of the loop takes.
    sample_every: seconds between two samples. watch: called when all is in place; what it gives is called after each
    step of the loop, and what that raises ends the run.
    Raises Refused for arguments that make no sense, and what `World.run` raises.
    """
    names = [load.name for load in loads]
    for what, given, allowed in (
        ("backends", backends, settings.targets), ("manners", manners or {}, names), ("callers", callers or {}, names)
    ):  # fmt: skip
        for name in given:
            if name not in allowed:
                raise Refused(f"{what} must be of {', '.join(allowed)}; not {shown(name)}")
    loop = VirtualLoop(charge=charge)
    stage = Stage(settings, backends, loads, seed, until, door, manners or {}, callers or {}, loop)

    async def story() -> Record:
        await stage.set_up()
        if down_at is not None:
            loop.call_at(down_at, stage.go_down)
        if sample_every is not None:
            stage.sample(sample_every)
        if watch is not None:
            loop.on_step = watch(stage)
        await stage.perform()
        return await stage.clear()

    return stage.world.run(story)
