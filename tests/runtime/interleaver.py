"""Threads that run one at a time, in an order that a seed chooses: a lock, conditions, threads and a clock in the place of
those that the threads of the host use (`libnpu/runtime/host_*.py`).

A thread goes on until it takes or gives the lock, waits, or ends; then any that could go on may be next. The clock moves
when none could go on: it tells for how long all have slept, and when none ever will again, that is an error.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time

from libnpu.runtime import host_functions, host_order, host_positions, host_turns, host_waits
from libnpu.runtime.host_threads import HOST


class Stuck(Exception):
    """No thread can ever go on."""


class Stop(BaseException):
    """Ends a thread that nobody needs any more."""


class Task:
    """A thread, which may go on when `ready()`, or at `until_s`."""

    def __init__(self, name):
        self.name = name
        self.thread = None
        self.ready = lambda: True
        self.until_s = None
        self.go = threading.Semaphore(0)


class Interleaver:
    """`now_s`: for how long all threads have slept. `threading`, `time`: in the place of these modules."""

    def __init__(self, seed):
        self.now_s = 0.0
        self.threading, self.time = Threading(self), Clock(self)
        self.stopped = self.stuck = False
        self._random = random.Random(seed)
        self._tasks = []
        self._local = threading.local()

    def add(self, name):
        """Return a new task, which a thread will be."""
        task = Task(name)
        self._tasks.append(task)
        return task

    def be(self, task):
        """Be `task`."""
        self._local.task = task

    @property
    def me(self):
        """The calling thread's task."""
        return self._local.task

    def pause(self, ready=lambda: True, until_s=None):
        """Let others run; return when `ready()`, or at a time. Raises Stuck, Stop."""
        me = self.me
        me.ready, me.until_s = ready, until_s
        if not self.stopped and (following := self._choose()) is not me:
            following.go.release()
            me.go.acquire()
        if self.stopped:
            raise Stop
        if self.stuck:
            raise Stuck(", ".join(task.name for task in self._tasks))

    def end(self):
        """End the calling thread's task."""
        self._tasks.remove(self.me)
        if not self.stopped:
            self._choose().go.release()

    def stop(self):
        """End all tasks but the calling thread's, one after the other."""
        self.stopped = True
        for task in self._tasks[:]:
            if task.thread is not None:
                task.go.release()
                threading.Thread.join(task.thread)

    def _choose(self):
        while not (ready := [task for task in self._tasks if task.ready()]):
            times = [task.until_s for task in self._tasks if task.until_s is not None and task.until_s > self.now_s]
            if not times:
                self.stuck = True
                return self._tasks[0]
            self.now_s = min(times)
        return self._random.choice(ready)


class Clock:
    """In the place of the module `time`."""

    def __init__(self, every):
        self.monotonic = lambda: every.now_s


class Lock:
    """In the place of threading.RLock."""

    def __init__(self, every):
        self.every = every
        self.owner = None
        self.depth = 0

    def acquire(self):
        if self.owner is not self.every.me:
            self.every.pause(lambda: self.owner is None)
            self.owner = self.every.me
        self.depth += 1

    def release(self):
        if self.every.stopped:
            return
        assert self._is_owned()
        self.depth -= 1
        if not self.depth:
            self.owner = None
            self.every.pause()

    def _is_owned(self):
        return self.owner is self.every.me

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


class Condition:
    """In the place of threading.Condition, for one thread that waits."""

    def __init__(self, lock):
        self._lock = lock
        self._notified = False

    def wait(self, timeout=None):
        lock, every = self._lock, self._lock.every
        assert lock._is_owned()
        depth, lock.depth, lock.owner = lock.depth, 0, None
        self._notified = False
        until_s = None if timeout is None else every.now_s + timeout

        def may_go_on():
            is_late = until_s is not None and every.now_s >= until_s
            return lock.owner is None and (self._notified or is_late)

        try:
            every.pause(may_go_on, until_s)
        finally:
            lock.depth, lock.owner = depth, every.me

    def notify(self):
        assert self._lock._is_owned()
        self._notified = True


class Thread(threading.Thread):
    """In the place of threading.Thread."""

    def __init__(self, every, **options):
        super().__init__(**{**options, "daemon": True})
        self._every = every
        self._has_ended = False

    def start(self):
        self._task = self._every.add(self.name)
        self._task.thread = self
        super().start()
        self._every.pause()

    def run(self):
        self._every.be(self._task)
        self._task.go.acquire()
        try:
            if not self._every.stopped and not self._every.stuck:
                super().run()
        except (Stop, Stuck):
            pass
        finally:
            self._has_ended = True
            self._every.end()

    def is_alive(self):
        return not self._has_ended

    def join(self, timeout=None):
        self._every.pause(lambda: self._has_ended)


class Threading:
    """In the place of the module `threading`."""

    def __init__(self, every):
        self._every = every
        self.Condition = Condition

    def RLock(self):
        return Lock(self._every)

    def Thread(self, **options):
        return Thread(self._every, **options)

    def __getattr__(self, name):
        return getattr(threading, name)


@contextlib.contextmanager
def interleaved(seed):
    """Let the threads of the host be an interleaver's in a `with` block; the calling thread is the first of them."""
    every = Interleaver(seed)
    every.be(every.add("main"))
    threads, clocks = (host_positions, host_turns, host_functions), (host_turns, host_waits, host_order)
    host, runners = dict(HOST.__dict__), host_functions.RUNNERS[:]
    for module in threads:
        module.threading = every.threading
    for module in clocks:
        module.time = every.time
    HOST.__init__()
    host_functions.RUNNERS.clear()
    try:
        yield every
    finally:
        every.stop()
        for module in threads:
            module.threading = threading
        for module in clocks:
            module.time = time
        HOST.__dict__.clear()
        HOST.__dict__.update(host)
        host_functions.RUNNERS[:] = runners
