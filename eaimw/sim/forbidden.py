"""A block in which nothing may come from the real world: no time, no chance, no socket, no thread.

    with forbidden():
        world.run(story)

What is called in it nevertheless raises Forbidden, which says what was called and from where; if somebody swallows
that, it is raised at the block's end. Only the thread that entered is watched, and asyncio and logging may read clocks
(the one in its debug mode, the other to stamp its records).

Caught, by whatever name the code of eaimw has bound it to (in a module, a class, or a function's defaults):
* `time`: time, monotonic, perf_counter, their _ns, sleep; `datetime`: datetime.now, utcnow, today, date.today
* `socket`: socket, socketpair, getaddrinfo, gethostbyname; `threading` and `_thread`: a new thread
* `os`: urandom, getrandom, and so `secrets`, `random.SystemRandom` and `uuid`
* `random`: its module-level functions, and a Random without a seed

Not caught: what compiled code does by itself (uvloop, say); what an object, a closure, a table, or another package has
bound before the block; the other clocks (`time.localtime()`, `process_time`, `clock_gettime`); files and processes;
`_socket` and `_random`, the C modules. And what varies without being called: the order of a set, which follows
addresses or the process's hash seed, `id()`, and when the garbage collector runs finalizers.
"""

from __future__ import annotations

import _thread
import datetime
import functools
import os
import random
import socket
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
_MAY_READ_CLOCKS = {"asyncio", "logging"}
_LIBRARY = str(Path(os.__file__).parent)


class Forbidden(BaseException):
    """The code under test has used the real world. No Exception, so that no `except Exception` takes it for another."""


@contextmanager
def forbidden() -> Iterator[None]:
    """See the module. Raises Forbidden."""
    watch = _Watch()
    with ExitStack() as undo:
        watch.set_up(undo)
        try:
            yield
        except BaseException as problem:
            if watch.met not in (None, problem):
                raise watch.met from problem
            raise
        if watch.met is not None:
            raise watch.met


class _Watch:
    """met: the first that was called. is_over: the block has ended; a guard that somebody kept lets everything pass."""

    def __init__(self) -> None:
        self.met: Forbidden | None = None
        self.is_over = False
        self._owner = threading.get_ident()
        self._guards: dict[object, object] = {}  # by what they stand in the place of

    def set_up(self, undo: ExitStack) -> None:
        """Put the guards in their places, until `undo` ends."""
        undo.callback(setattr, self, "is_over", True)
        for name in _CLOCKS:
            self._put(undo, time, name, f"time.{name}()", allows=_reads_a_clock)
        for module, names in (
            (os, ("urandom", "getrandom")),
            (uuid, ("uuid1", "uuid4", "uuid6", "uuid7")),
            (socket, ("socketpair", "getaddrinfo", "gethostbyname")),
            (_thread, ("start_new_thread", "start_joinable_thread")),
        ):
            for name in names:
                if hasattr(module, name):
                    self._put(undo, module, name, f"{module.__name__}.{name}()")
        self._put(undo, random, "_urandom", "os.urandom()")
        for name in random.__all__:
            if isinstance(getattr(getattr(random, name), "__self__", None), random.Random):
                self._put(undo, random, name, f"random.{name}()")
        self._put(undo, random.Random, "seed", "random.Random() without a seed", allows=_is_seeded)
        self._put(undo, socket.socket, "__init__", "socket.socket()")
        self._put(undo, threading.Thread, "start", "threading.Thread.start()")
        self._replace(undo, datetime, "datetime", self._dated(datetime.datetime, ("now", "utcnow", "today")))
        self._replace(undo, datetime, "date", self._dated(datetime.date, ("today",)))
        for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "eaimw"]:
            if module is not sys.modules[__name__]:
                self._rebind(undo, module)

    def _put(
        self, undo: ExitStack, place: Any, name: str, what: str, allows: Callable[..., bool] | None = None
    ) -> None:
        self._replace(undo, place, name, self._guard(getattr(place, name), what, allows))

    def _replace(self, undo: ExitStack, place: Any, name: str, guard: object) -> None:
        real = getattr(place, name)
        self._guards[real] = guard
        undo.callback(setattr, place, name, real)
        setattr(place, name, guard)

    def _guard(self, real: Callable[..., Any], what: str, allows: Callable[..., bool] | None = None) -> Any:
        @functools.wraps(real)
        def guarded(*args: Any, **options: Any) -> Any:
            if self.is_over or threading.get_ident() != self._owner or (allows and allows(*args, **options)):
                return real(*args, **options)
            problem = Forbidden(f"{what} was called, {_origin()}")
            self.met = self.met or problem
            raise problem

        return guarded

    def _dated(self, real: type, names: Sequence[str]) -> type:
        """Stands for the class, whose instances it makes; it alone can refuse, since C types cannot be changed."""

        class Meta(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, real)

            def __subclasscheck__(cls, subclass: type) -> bool:
                return issubclass(subclass, real)

        members: dict[str, Any] = {"__new__": lambda cls, *args, **options: real(*args, **options)}
        for name in names:
            members[name] = staticmethod(self._guard(getattr(real, name), f"datetime.{real.__name__}.{name}()"))
        return Meta(real.__name__, (real,), members)

    def _rebind(self, undo: ExitStack, module: types.ModuleType) -> None:
        """What a module has bound by a name of its own, and what its classes and its functions' defaults have."""
        for place in [module, *(value for value in vars(module).values() if isinstance(value, type))]:
            if place is not module and place.__module__.partition(".")[0] not in ("eaimw", "breaker"):
                continue
            for name, value in [*vars(place).items()]:
                inside = value.__func__ if isinstance(value, staticmethod) else value
                guard = self._guard_of(inside)
                if guard is not None:
                    undo.callback(setattr, place, name, value)
                    setattr(place, name, staticmethod(guard) if isinstance(value, staticmethod) else guard)
                elif isinstance(inside, types.FunctionType):
                    self._rebind_defaults(undo, inside)

    def _rebind_defaults(self, undo: ExitStack, function: types.FunctionType) -> None:
        for name in ("__defaults__", "__kwdefaults__"):
            old = getattr(function, name)
            values = old.values() if isinstance(old, dict) else old or ()
            new = [self._guard_of(value) or value for value in values]
            if any(one is not other for one, other in zip(new, values, strict=True)):
                undo.callback(setattr, function, name, old)
                setattr(function, name, dict(zip(old, new, strict=True)) if isinstance(old, dict) else tuple(new))

    def _guard_of(self, value: object) -> Any:
        kinds = (types.BuiltinFunctionType, types.FunctionType, types.MethodType, type)
        return self._guards.get(value) if isinstance(value, kinds) else None


def _reads_a_clock(*_: object) -> bool:
    """Is the caller one that may?"""
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.partition(".")[0] in _MAY_READ_CLOCKS


def _is_seeded(_: random.Random, a: object = None, version: int = 2) -> bool:
    return a is not None


def _origin() -> str:
    """The line of the innermost caller that is not of the standard library."""
    frame = caller = sys._getframe(2)
    while _is_library(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    if _is_library(frame.f_code.co_filename):
        frame = caller
    return f"in {frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}"


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", _LIBRARY)) and "site-packages" not in file
