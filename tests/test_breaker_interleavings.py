"""breaker/breaker.py in every order of three callers and of time: what comes of it is what the table allows.

The file's own verbs are run in steps (`interleaving`), from one access to what threads share to the next. Beside them
runs a model that is little more than TABLE: a verb looks at the generation, looks at the clock, and decides, each at
once. What every order of the file's steps leaves behind (the state, the yeses, so never more probes than asked for,
and what was told) must be what some order of the model's leaves behind, and the other way round. That is more than
10^20 orders, through 1,300,000 states.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interleaving import Explored, Explorer, Lock, Steps, World, in_steps, run

from eaimw.kernel.breaker import CLOSED, HALF_OPEN, OPEN, TABLE

SOURCE = (Path(__file__).parent.parent / "breaker" / "breaker.py").read_text(encoding="utf-8")
WAIT, LEASE = 10.0, 5.0

# The methods that are run in steps, and the attributes that one thread may change while another looks.
VERBS = {"allow", "acquire", "record_success", "record_failure", "success", "failure", "ignore", "trip", "_end"}
PARTS = {"_ask", "_succeed", "_fail", "_free_place", "_move", "_publish", "_tell"}
OTHERS = {"clock", "listener", "release"}
SHARED = {"_now", "failures", "places", "missing", "_changes"}
LOCKED = {"_move"}  # called with the lock held


Kind = tuple[str, str]  # how a caller asks, and what it reports; one that trips asks for nothing
PERMIT: list[Kind] = [("permit", "success"), ("permit", "failure"), ("permit", "ignore")]
BARE: list[Kind] = [("bare", "success"), ("bare", "failure")]
TRIP: list[Kind] = [("none", "trip")]


class Situation(NamedTuple):
    """What has happened when the callers come, and the steps that time makes while they are there."""

    threshold: int
    before: tuple[str, ...]
    time: tuple[float, ...]
    probes: int = 1


SITUATIONS = {
    "CLOSED, the second failure opens": Situation(2, (), (WAIT,)),
    "CLOSED, the first failure opens": Situation(1, (), (WAIT,)),
    "CLOSED, one call older than a failure": Situation(2, ("ask", "failure"), (WAIT,)),
    "OPEN, one call older than that": Situation(1, ("ask", "failure"), (WAIT,)),
    "OPEN, the wait ends": Situation(1, ("failure",), (WAIT,)),
    "HALF_OPEN, the probe's lease ends": Situation(1, ("failure", "wait", "ask"), (LEASE,)),
    "OPEN, the wait of two probes ends": Situation(1, ("failure",), (WAIT,), 2),
    "HALF_OPEN, one of two probes out": Situation(1, ("failure", "wait", "ask"), (LEASE,), 2),
}
# For two callers, since with a third it has too many states: the later of two looks at the clock may decide first.
WAIT_AND_LEASE = Situation(1, ("failure",), (WAIT, LEASE), 2)


class Clock:
    """Time, which somebody has to move; a look at it is a stop."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> Steps:
        yield
        return self.now

    def move(self, *steps: float) -> Steps:
        for step in steps:
            yield
            self.now += step


class Model:
    """The table. A generation is a number, and so is a permit."""

    def __init__(self, situation: Situation, clock: Clock, listens: bool) -> None:
        self.threshold, self.probes, self.clock, self._listens = situation.threshold, situation.probes, clock, listens
        self.told: list[tuple[str, str, float | None]] = []
        self.state, self.generation = CLOSED, 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        self.count, self.began, self.places, self.missing = 0, now, self.probes - 1, self.probes

    def happen(self, event: str, now: float | None = None) -> None:
        before, self.state = self.state, TABLE[self.state, event]
        if self._listens and self.state is not before:
            self.told.append((str(before), str(self.state), now))
        if self.state is before and event == "ask, probe's place free" and self.places:
            self.places, self.began = self.places - 1, max(self.began, now or 0.0)
        elif self.state is not before or event == "ask, probe's place free":
            self.generation += 1
            self.begin(now or 0.0)

    def ask(self, face: str) -> Steps:
        yield
        if self.state is CLOSED:
            return self.generation
        now = yield from self.clock.read()
        yield
        if self.state is CLOSED:
            event = "ask"
        elif self.state is OPEN:
            event = "ask, wait over" if now >= self.began + WAIT else "ask, wait not over"
        else:
            event = "ask, probe's place free" if self.places or now >= self.began + LEASE else "ask, probe out"
        self.happen(event, now)
        return None if event in ("ask, wait not over", "ask, probe out") else self.generation

    def report(self, face: str, generation: int, end: str) -> Steps:
        if face == "bare":  # without a permit it is for the generation that is found
            yield
            generation = self.generation
        now = (yield from self.clock.read()) if end == "failure" else None
        yield
        if generation != self.generation:
            return
        if end == "ignore":
            self.places += 1
        elif self.state is HALF_OPEN and end == "success" and self.missing > 1:
            self.happen("success, probes missing")
            self.missing -= 1
        elif self.state is CLOSED and end == "failure" and self.count + 1 == self.threshold:
            self.happen("failure, the threshold-th", now)
        else:
            self.happen(end, now)
            self.count = self.count + 1 if self.state is CLOSED and end == "failure" else 0

    def trip(self) -> Steps:
        now = yield from self.clock.read()
        yield
        self.happen("trip", now)

    def note(self) -> None:
        """Its generations have numbers by themselves."""

    def stands(self) -> Hashable:
        return str(self.state), self.count, self.began, (self.places, self.missing) if self.state is HALF_OPEN else None

    def shared(self) -> Hashable:
        return self.stands(), self.generation, (*self.told,)

    def value(self, local: Any) -> Hashable:
        return _plain(local)


class Real:
    """The file's breaker, run in steps, with the model's face."""

    def __init__(self, file: dict[str, Any], situation: Situation, clock: Clock, listens: bool) -> None:
        self.told: list[tuple[str, str, float | None]] = []
        self._is_telling = self.is_told_at_once = False
        listen = self._listen if listens else None
        self._breaker = file["CircuitBreaker"](
            situation.threshold, WAIT, clock.read, probes=situation.probes, probe_lease=LEASE, on_change=listen
        )
        self._breaker._lock, self._breaker._publishing = Lock(), Lock(is_tried=True)
        self._generations = [self._breaker._now]

    def _listen(self, change: Any) -> Steps:
        self.is_told_at_once |= self._is_telling
        self._is_telling = True
        yield
        self.told.append((str(change.before), str(change.after), change.at))
        self._is_telling = False

    def ask(self, face: str) -> Steps:
        if face == "bare":
            return (yield from self._breaker.allow()) or None
        return (yield from self._breaker.acquire())

    def report(self, face: str, permit: Any, end: str) -> Steps:
        yield from getattr(self._breaker, f"record_{end}")() if face == "bare" else getattr(permit, end)()

    def trip(self) -> Steps:
        yield from self._breaker.trip("it hangs")

    def note(self) -> None:
        """Give a new generation its number."""
        if self._breaker._now is not self._generations[-1]:
            self._generations.append(self._breaker._now)

    def stands(self) -> Hashable:
        now = self._breaker._now
        probes = (now.places, now.missing) if now.state == HALF_OPEN else None
        return str(now.state), self._breaker.failures, now.began_at, probes

    def shared(self) -> Hashable:
        own = self._breaker
        generations = tuple((g.state, g.failures, g.began_at, g.places, g.missing) for g in self._generations)
        locks = own._lock.is_held, own._publishing.is_held, self._is_telling, self.is_told_at_once
        return generations, locks, (*own._changes,), (*self.told,)

    def value(self, local: Any) -> Hashable:
        name = type(local).__name__
        if name == "Permit":
            return name, self.value(getattr(local, "_generation", None))
        if name == "_Generation":
            numbers = [number for number, known in enumerate(self._generations) if known is local]
            return name, numbers[0] if numbers else (local.state, local.began_at)
        return _plain(local)


def _plain(local: Any) -> Hashable:
    return local if local is None or isinstance(local, (bool, int, float, str, tuple)) else type(local).__name__


class Scene(World):
    """Three callers at a breaker or the model, and time, which moves while they are there."""

    def __init__(self, subject: Real | Model, clock: Clock, situation: Situation, kinds: tuple[Kind, ...]) -> None:
        self.subject, self.clock = subject, clock
        yes = self._come_to(situation)
        subject.note()
        callers = [self._call(kind, yes if number == 0 else None) for number, kind in enumerate(kinds)]
        super().__init__(*callers, clock.move(*situation.time))

    def _come_to(self, situation: Situation) -> Any:
        """Bring it there, nobody between; gives the yes that the first caller comes with, if it has one."""
        yes = None
        for what in situation.before:
            if what == "ask":
                yes = run(self.subject.ask("permit"))
            elif what == "failure":
                run(self.subject.report("permit", run(self.subject.ask("permit")), what))
            else:
                run(self.clock.move(WAIT))
            self.subject.note()
        return yes

    def _call(self, kind: Kind, yes: Any) -> Steps:
        face, end = kind
        if end == "trip":
            yield from self.subject.trip()
            return kind
        if yes is None:
            yes = yield from self.subject.ask(face)
        if yes is not None:
            yield from self.subject.report(face, yes, end)
        return face, end, yes is not None

    def go_on(self, number: int) -> bool:
        went = super().go_on(number)
        self.subject.note()
        return went

    def value(self, local: Any) -> Hashable:
        return self.subject.value(local)

    def shared(self) -> Hashable:
        return self.subject.shared(), self.clock.now

    def outcome(self) -> Hashable:
        """What stands, what was told in which order, and who got a yes."""
        assert not getattr(self.subject, "is_told_at_once", False), "two listeners at once"
        return self.subject.stands(), (*self.subject.told,), frozenset(Counter(self.results).items())


def explored(
    situation: Situation, kinds: list[Kind], file: dict[str, Any], *, listens: bool, callers: int = 3
) -> Explored:
    """Every order of all callers of these kinds, held against the model's orders. Gives the sums."""
    real, model = Explorer(), Explorer()
    orders = states = 0
    for who in itertools.combinations_with_replacement(kinds, callers):

        def scene(subject: Callable[[Clock], Real | Model], who: tuple[Kind, ...] = who) -> Scene:
            clock = Clock()
            return Scene(subject(clock), clock, situation, who)

        found = real.explore(lambda: scene(lambda clock: Real(file, situation, clock, listens)))
        allowed = model.explore(lambda: scene(lambda clock: Model(situation, clock, listens)))
        assert found.outcomes == allowed.outcomes, f"an order gives what none may: {who}"
        orders, states = orders + found.orders, states + found.states
    return Explored(set(), orders, states)


def file_in_steps(source: str = SOURCE) -> dict[str, Any]:
    return in_steps(source, calls=VERBS | PARTS | OTHERS, shared=SHARED, locked=LOCKED)


@pytest.mark.parametrize("case", SITUATIONS)
def test_every_order_of_three_callers_is_one_that_the_table_allows(case: str) -> None:
    """All that ask and report, by permit and bare, and trip: the state left behind and every answer are the model's."""
    found = explored(SITUATIONS[case], PERMIT + BARE + TRIP, file_in_steps(), listens=False)
    assert found.orders > 1_000_000_000


@pytest.mark.parametrize("case", SITUATIONS)
def test_every_order_tells_each_change_once_and_in_order(case: str) -> None:
    """With a listener, during which anybody else's turn may come: what is told is the model's path, one at a time."""
    found = explored(SITUATIONS[case], PERMIT + TRIP, file_in_steps(), listens=True)
    assert found.orders > 1_000_000_000


def test_every_order_of_two_callers_through_a_wait_and_a_lease() -> None:
    """Two probes, all kinds, with a listener: as above."""
    explored(WAIT_AND_LEASE, PERMIT + BARE + TRIP, file_in_steps(), listens=True, callers=2)


# That it can fail: the file with a fault in it.

NO_LOCK = "with self._lock:", "if True:"
TOLD_TWICE = "two may tell at once"
CHECK = "            if generation is not self._now:\n                return\n"
FAULTS = {
    "asking takes no lock": ("_ask", *NO_LOCK),
    "failing takes no lock": ("_fail", *NO_LOCK),
    "succeeding takes no lock": ("_succeed", *NO_LOCK),
    "a place is freed without the lock": ("_free_place", *NO_LOCK),
    "tripping takes no lock": ("trip", *NO_LOCK),
    "a trip looks before the lock is taken": (
        "trip",
        "        with self._lock:\n            if self._now.state is CLOSED:\n",
        "        if self._now.state is CLOSED:\n            with self._lock:\n",
    ),
    "a failure's generation is checked before the lock is taken": (
        "_fail",
        "        with self._lock:\n" + CHECK,
        "        if generation is not self._now:\n            return\n        with self._lock:\n",
    ),
    "a late failure counts": ("_fail", CHECK, ""),
    "a late success counts": ("_succeed", CHECK, ""),
    "the second probe has the generation of the first": (
        "_ask",
        "probe = self._now = _Generation(HALF_OPEN, now, generation.reopened, self.probes)",
        "generation.began_at = now; probe = generation",
    ),
    "a probe keeps its place free": ("_ask", "generation.places -= 1", "pass"),
    "one success of several closes": ("_succeed", "elif generation.missing > 1:", "elif False:"),
    "the lease counts from the look at the clock that came last": ("_ask", "max(now, generation.began_at)", "now"),
    "whoever has told looks no more": (
        "_publish",
        "while self._changes and self._pub",
        "if self._changes and self._pub",
    ),
    TOLD_TWICE: ("_publish", "and self._publishing.acquire(blocking=False)", "and not self._lock.is_held"),
    "a change is not taken down": ("_move", "self._changes.append(Change(before.state, state, now, why))", "pass"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    """A lock left out, a check moved before it, a baton put down too early: some order gives what none may."""
    method, right, wrong = FAULTS[fault]
    before, name, code = SOURCE.partition(f"    def {method}(")
    assert right in code.partition("\n    def ")[0]
    file = file_in_steps(before + name + code.replace(right, wrong, 1))

    def explore_all() -> None:
        for situation in (*SITUATIONS.values(), WAIT_AND_LEASE):
            explored(situation, PERMIT + TRIP, file, listens=True, callers=2)

    problem, says = (
        (IndexError, "pop from an empty deque") if fault == TOLD_TWICE else (AssertionError, "an order gives")
    )
    with pytest.raises(problem, match=says):
        explore_all()


# The explorer itself.


class Counting(World):
    """Three callers who each add one to a count that they share, under a lock or not."""

    def __init__(self, *, has_lock: bool) -> None:
        self.count, self._lock = 0, Lock()
        super().__init__(*(self._add(has_lock) for _ in range(3)))

    def _add(self, has_lock: bool) -> Steps:
        if has_lock:
            yield from self._lock.acquire()
        yield
        now = self.count
        yield
        self.count = now + 1
        yield
        if has_lock:
            yield from self._lock.release()

    def value(self, local: Any) -> Hashable:
        return _plain(local)

    def shared(self) -> Hashable:
        return self.count, self._lock.is_held

    def outcome(self) -> Hashable:
        return self.count


def test_it_counts_every_order_and_finds_what_only_some_give() -> None:
    """Three callers of four steps: 12! / (4! 4! 4!) orders. Additions are lost without a lock, none with it."""
    assert Explorer().explore(lambda: Counting(has_lock=False))[:2] == ({1, 2, 3}, 34_650)
    assert Explorer().explore(lambda: Counting(has_lock=True)).outcomes == {3}


class Crossing(World):
    """Two callers who take two locks, each in its own order."""

    def __init__(self) -> None:
        self._locks = [Lock(), Lock()]
        super().__init__(self._take(0, 1), self._take(1, 0))

    def _take(self, first: int, second: int) -> Steps:
        for number in (first, second):
            yield from self._locks[number].acquire()
        for number in (first, second):
            yield from self._locks[number].release()

    def value(self, local: Any) -> Hashable:
        return _plain(local)

    def shared(self) -> Hashable:
        return tuple(lock.is_held for lock in self._locks)

    def outcome(self) -> Hashable:
        return self.shared()


def test_it_finds_callers_who_wait_for_each_other() -> None:
    """Some order of two locks taken crosswise does not go on."""
    with pytest.raises(AssertionError, match="wait for each other"):
        Explorer().explore(Crossing)
