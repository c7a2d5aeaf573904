"""Every interleaving of a few callers in a source file's own code, one thread, no chance.

Threads can change places before any access to what they share. So each function of the file is made a generator that
stops before every such access, and at locks; whoever holds the generators decides who goes next. An `Explorer` takes
every choice at every stop. Where two orders have led to the same state (the same shared values, callers at the same
places with the same locals), what follows is the same and is looked at once; the orders are counted by adding up.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple

Steps = Generator[Any, None, Any]


class Lock:
    """A lock whose taking is a stop; it yields itself there, for whoever must wait.

    Giving it back is none, since it could as well have come with the step before. But where threads only try it and
    then go on without, they can tell: then is_tried.
    """

    def __init__(self, *, is_tried: bool = False) -> None:
        self.is_held = False
        self._is_tried = is_tried

    def acquire(self, blocking: bool = True) -> Generator[Lock | None, None, bool]:
        yield self if blocking else None
        if self.is_held:
            return False
        self.is_held = True
        return True

    def release(self) -> Steps:
        if self._is_tried:
            yield
        self.is_held = False


class _Stops(ast.NodeTransformer):
    """Makes the functions in `calls` generators that stop before each access to an attribute in `shared`.

    Not before one that reads within a `with`: a lock is held there, and writes have a lock too (or that is the fault
    that is found). Nor within the functions in `locked`, which are called there.
    """

    def __init__(self, calls: set[str], shared: set[str], locked: set[str]) -> None:
        self._calls, self._shared, self._locked = calls, shared, locked
        self._is_locked = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in self._calls:
            self._is_locked = node.name in self._locked
            self.generic_visit(node)
            self._is_locked = False
            node.body[:0] = ast.parse("yield from ()").body  # a generator, whatever is in it
        return node

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        before, self._is_locked = self._is_locked, True
        self.generic_visit(node)
        self._is_locked = before
        lock = ast.unparse(node.items[0].context_expr)
        take, give = (ast.parse(f"yield from {lock}.{verb}()").body[0] for verb in ("acquire", "release"))
        return [take, ast.Try(node.body, [], [], [give])]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        return ast.YieldFrom(node) if name in self._calls else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if self._is_locked or not self._is_shared(node) or not isinstance(node.ctx, ast.Load):
            return node
        return ast.Subscript(ast.Tuple([ast.Yield(), node], ast.Load()), ast.Constant(1), ast.Load())

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        self.generic_visit(node)
        return self._after_a_stop(node, node.targets)

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        return self._after_a_stop(node, node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """A read, and then a write."""
        target = ast.unparse(node.target)
        read, write = ast.parse(f"_sum = {target}\n{target} = _sum").body
        add = ast.AugAssign(ast.Name("_sum", ast.Store()), node.op, node.value)
        return [*self.visit(read), add, *self.visit(write)]

    def _after_a_stop(self, node: ast.stmt, targets: list[ast.expr]) -> list[ast.stmt]:
        return [ast.Expr(ast.Yield()), node] if any(map(self._is_shared, targets)) else [node]

    def _is_shared(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in self._shared


def in_steps(source: str, *, calls: set[str], shared: set[str], locked: set[str]) -> dict[str, Any]:
    """The names of a file whose functions in `calls` have become generators, as `_Stops` says."""
    tree = _Stops(calls, shared, locked).visit(ast.parse(source))
    names: dict[str, Any] = {"__name__": "in_steps"}
    exec(compile(ast.fix_missing_locations(tree), "in steps", "exec", dont_inherit=True), names)
    return names


def run(steps: Steps) -> Any:
    """All of it, nobody between."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


class World:
    """The callers of one run, and what they share. Says where each stands, as values that can be compared.

    What a caller's next step does must follow from its own place and from what is shared.
    """

    def __init__(self, *callers: Steps) -> None:
        self._callers: list[Any] = [*callers]
        self._stops: list[object] = [None] * len(callers)
        self.results: list[Any] = [None] * len(callers)

    def go_on(self, number: int) -> bool:
        """One step of a caller. False: it waits for a lock that is held."""
        stop = self._stops[number]
        if isinstance(stop, Lock) and stop.is_held:
            return False
        try:
            self._stops[number] = next(self._callers[number])
        except StopIteration as end:
            self.results[number] = end.value
        return True

    def is_over(self, number: int) -> bool:
        return self._callers[number].gi_frame is None

    def place(self, number: int) -> Hashable:
        """Where it stands, with which locals; at its end what came of it."""
        steps: Any = self._callers[number]
        if steps.gi_frame is None:
            return self.value(self.results[number])
        places: list[Hashable] = []
        while hasattr(steps, "gi_frame"):
            frame = steps.gi_frame
            places += id(frame.f_code), frame.f_lasti
            places += map(self.value, frame.f_locals.values())
            steps = steps.gi_yieldfrom
        return tuple(places)

    def close(self) -> None:
        """End callers that are under way; those that stop on their way out go on."""
        for caller in self._callers:
            while caller.gi_frame is not None:
                with contextlib.suppress(RuntimeError):
                    caller.close()

    def value(self, local: Any) -> Hashable:
        """A local of a caller, so that equal ones mean the same in every run."""
        raise NotImplementedError

    def shared(self) -> Hashable:
        """All that one caller's step may change for another."""
        raise NotImplementedError

    def outcome(self) -> Hashable:
        """What is left when all are at their ends."""
        raise NotImplementedError


State = tuple[int, tuple[int, ...]]  # what is shared, and the places of the callers in no order; both by number


class Explored(NamedTuple):
    """outcomes: of all orders. orders: how many there are. states: how many different ones they lead through."""

    outcomes: set[Hashable]
    orders: int
    states: int


class Explorer:
    """Takes every order. What a step does is learnt by running it, once for each place and what is shared.

    One explorer may serve several worlds that differ in who comes, and what it has learnt serves them all.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._ends: set[int] = set()
        self._steps: dict[tuple[int, int], tuple[int, int] | None] = {}

    def explore(self, begin: Callable[[], World]) -> Explored:
        """Every order in which the callers can go on. Raises what one raises; AssertionError if they are stuck."""
        world = begin()
        start = [self._place(world, number) for number in range(len(world.results))]
        first = self._number(world.shared()), tuple(sorted(start))
        world.close()
        after: dict[State, list[State]] = {first: []}
        before: dict[State, tuple[State, int]] = {}
        outcomes: set[Hashable] = set()
        untried = [first]
        while untried:
            state = untried.pop()
            shared, places = state
            for at, place in enumerate(places):
                if place in self._ends:
                    continue
                if (place, shared) not in self._steps:
                    self._learn(begin(), start, _way(before, state), place, shared)
                step = self._steps[place, shared]
                if step is None:
                    continue
                child = step[1], tuple(sorted((*places[:at], step[0], *places[at + 1 :])))
                after[state].append(child)
                if child not in after:
                    after[child] = []
                    before[child] = state, place
                    untried.append(child)
            if not after[state]:
                assert self._ends.issuperset(places), "they wait for each other"
                world = begin()
                self._walk(world, start, _way(before, state))
                outcomes.add(world.outcome())
        return Explored(outcomes, _orders(after, first), len(after))

    def _learn(self, world: World, start: list[int], way: list[int], place: int, shared: int) -> None:
        try:
            number = self._walk(world, start, way).index(place)
            went = world.go_on(number)
            self._steps[place, shared] = (self._place(world, number), self._number(world.shared())) if went else None
        finally:
            world.close()

    def _walk(self, world: World, start: list[int], way: list[int]) -> list[int]:
        """Go that way from the start; gives the callers' places."""
        places = [*start]
        shared = self._number(world.shared())
        for place in way:
            number = places.index(place)
            world.go_on(number)
            step = self._steps[place, shared]
            assert step is not None
            places[number], shared = step
        return places

    def _place(self, world: World, number: int) -> int:
        is_over = world.is_over(number)
        place = self._number((is_over, world.place(number)))
        if is_over:
            self._ends.add(place)
        return place

    def _number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _way(before: dict[State, tuple[State, int]], state: State) -> list[int]:
    """The places of those who went on, from the first state to this one."""
    way = []
    while state in before:
        state, place = before[state]
        way.append(place)
    return way[::-1]


def _orders(after: dict[State, list[State]], first: State) -> int:
    """How many ways lead from the first state to an end."""
    ways: dict[State, int] = {}
    unsure = [first]
    while unsure:
        unknown = [state for state in after[unsure[-1]] if state not in ways]
        if unknown:
            unsure += unknown
        else:
            state = unsure.pop()
            ways[state] = sum(ways[child] for child in after[state]) or 1
    return ways[first]
