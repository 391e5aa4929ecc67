"""Child processes that never outlive their launcher.

Each child leads a process group of its own, so that Ctrl-C reaches the launcher alone and the launcher decides the
order of the end: last started, first stopped; SIGTERM, then SIGKILL after a deadline, to the whole group, because an
engine's worker processes do not all follow when its server dies.
One queue carries what can happen: a child ended, or somebody asked to stop. Nothing is polled but a group's emptiness.
Who asks twice to stop is in a hurry: what still runs is killed at once.
"""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from launcher.command import Command
from launcher.failure import Interrupted, LaunchError
from launcher.terminal import Progress

Handler = Callable[[int, FrameType | None], object] | int | None
POLL = 0.05  # seconds between two looks at a group that is to end
ORPHAN_GRACE = 5.0  # seconds for workers whose server is gone: nobody tells them anything any more
TICK = 0.25  # seconds between two signs of life on the terminal
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Child:
    """A running program. ``grace`` is how many seconds its group has between SIGTERM and SIGKILL."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    grace: float


@dataclass(frozen=True, slots=True)
class Exited:
    """A child ended; ``code`` is negative for a signal."""

    child: Child
    code: int


class Supervisor:
    """Owns every child of a launch. On leaving its context no child is left, whatever happened inside."""

    def __init__(self, progress: Progress, *, environment: Mapping[str, str], directory: Path) -> None:
        self._progress = progress
        self._environment = environment
        self._directory = directory
        self._events: queue.SimpleQueue[Exited | Interrupted] = queue.SimpleQueue()
        self._children: list[Child] = []
        self._hurry = False
        self._handlers: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            self._handlers[number] = signal.signal(number, self._asked_to_stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._children:
                self._stop(self._children.pop())
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def start(self, name: str, command: Command, log: Path, *, grace: float = 10.0) -> Child:
        """Start a program with its output in ``log``. Raises LaunchError when there is no such program."""
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"$ {command.shown()}\n".encode())
            output.flush()
            try:
                process = subprocess.Popen(  # the group is ended by _stop, on every way out
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    env=command.environment(self._environment),
                    start_new_session=True,
                )
            except OSError as exc:
                raise LaunchError(f"{command.label}: cannot run {command.argv[0]}: {exc.strerror}", log=log) from exc
        child = Child(name, process, log, grace)
        self._children.append(child)
        threading.Thread(target=self._watch, args=(child,), name=f"watch {name}", daemon=True).start()
        return child

    def run(self, command: Command, log: Path) -> int:
        """Run a program to its end and return its exit code. Raises Interrupted."""
        child = self.start(command.label, command, log)
        while True:
            event = self.wait(TICK)
            self._progress.tick()
            if event is not None and event.child is child:
                self._children.remove(child)
                self._stop(child)
                return event.code

    def wait(self, seconds: float | None) -> Exited | None:
        """The next child that ended, or None after ``seconds``. Raises Interrupted when asked to stop."""
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(event, Interrupted):
            raise event
        return event

    def _watch(self, child: Child) -> None:
        self._events.put(Exited(child, child.process.wait()))

    def _asked_to_stop(self, number: int, _frame: FrameType | None) -> None:
        self._events.put(Interrupted(number))  # SimpleQueue.put is reentrant: safe in a handler

    def _stop(self, child: Child) -> None:
        """End the child's group: SIGTERM; SIGKILL for what is left when its time is up or somebody is in a hurry."""
        group = child.process.pid
        if _signal_group(group, signal.SIGTERM) and not self._gone(child, hurry_counts=True):
            _signal_group(group, signal.SIGKILL)
            self._gone(child, hurry_counts=False)
        child.process.poll()

    def _gone(self, child: Child, *, hurry_counts: bool) -> bool:
        """Wait until no process of the child's group runs; False when its time is up before that."""
        deadline, orphaned = time.monotonic() + child.grace, False
        while _has_members(child.process.pid):
            if not orphaned and child.process.poll() is not None:
                deadline, orphaned = min(deadline, time.monotonic() + ORPHAN_GRACE), True
            left = deadline - time.monotonic()
            if left <= 0 or (hurry_counts and self._hurry):
                return False
            try:
                event = self._events.get(timeout=min(left, POLL))
            except queue.Empty:
                continue
            self._hurry = self._hurry or isinstance(event, Interrupted)
        return True


def _signal_group(group: int, number: signal.Signals) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _has_members(group: int) -> bool:
    """Whether a process of the group still runs. A zombie does not count: in a container nobody may ever collect it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if int(its_group) == group and state not in {"Z", "X"}:
            return True
    return False
