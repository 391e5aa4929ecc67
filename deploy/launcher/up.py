"""``deploy/up``: from a fresh clone to a gateway that answers, and back to nothing running."""

import fcntl
import json
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from launcher import layout as layouts
from launcher import machine, options, readiness, recipe
from launcher.command import Command
from launcher.environments import Installer
from launcher.failure import Interrupted, LaunchError, end_badly
from launcher.layout import Layout
from launcher.options import Options
from launcher.processes import TICK, Exited, Supervisor
from launcher.terminal import Progress

START_LIMITS = {"engine": 1800.0, "gateway": 60.0}  # seconds; compiling a large model takes its time
ENGINE_GRACE = 20.0  # seconds: vLLM's server ends its workers itself when it is given the time
GATEWAY_GRACE = 35.0  # seconds: the gateway itself lets answers in flight finish for 30


def main(arguments: Sequence[str]) -> int:
    """Run until stopped. Returns 0 when stopped after being ready, else 1, 2, or 128 + the signal's number."""
    chosen = options.parse(arguments)
    launch = Launch(layouts.find(), chosen, Progress(sys.stdout))
    try:
        if chosen.dry_run:
            launch.print_commands()
            return 0
        return launch.run()
    except LaunchError as exc:
        return end_badly("deploy/up", exc, launch.layout)
    except Interrupted as exc:
        print(f"deploy/up: stopped by {signal.Signals(exc.signal_number).name} before it was ready", file=sys.stderr)
        return 128 + exc.signal_number


@dataclass(frozen=True, slots=True)
class Plan:
    """Every command of a launch in its order; engine and model are None before upstreams that exist."""

    installations: tuple[recipe.Installation, ...]
    """The gateway's comes first."""
    check: Command
    model: Command | None
    engine: Command | None
    gateway: Command


class Launch:
    """One run of ``deploy/up``."""

    def __init__(self, layout: Layout, chosen: Options, progress: Progress) -> None:
        self.layout = layout
        self._options = chosen
        self._progress = progress
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(chosen.host, chosen.host)  # noqa: S104 - named, not bound
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{chosen.port}"

    def print_commands(self) -> None:
        """Print what ``run`` would start on an empty checkout, and start nothing."""
        plan = self._plan()
        for installation in plan.installations:
            self._print(recipe.creation(installation, clear=True))
            for command in (*installation.packages, installation.project):
                self._print(command)
            if installation.name == "gateway":
                self._print(plan.check)
        for one in (plan.model, plan.engine, plan.gateway):
            if one is not None:
                self._print(one)

    def run(self) -> int:
        """Install what is missing, start, say ready, and wait for the end. Raises LaunchError and Interrupted."""
        # Before the ports: those of a run in this checkout are in use, and other ones would not help.
        with self._alone():
            self._check_machine()
            return self._run()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One run per checkout: two would share logs and ledger. Raises LaunchError."""
        self.layout.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.layout.state / "up.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise LaunchError("another ./deploy/up runs in this checkout; stop it, or use a second clone") from exc
            yield

    def _run(self) -> int:
        began = time.monotonic()
        plan = self._plan()
        # No load balancer has to notice that a gateway on this machine goes away.
        environment = {"REPRISE_SHUTDOWN_DELAY": "0", **os.environ}
        with Supervisor(self._progress, environment=environment, directory=self.layout.root) as supervisor:
            self._install(plan, supervisor)
            if plan.engine is not None:
                health = f"http://127.0.0.1:{self._options.engine_port}/health"
                self._start("engine", plan.engine, supervisor, grace=ENGINE_GRACE, url=health)
            self._start("gateway", plan.gateway, supervisor, grace=GATEWAY_GRACE, url=f"{self._url}/readyz")
            self._progress.say(self._ready_message(time.monotonic() - began))
            return self._watch(supervisor)

    def _check_machine(self) -> None:
        machine.require_free(self._options.host, self._options.port, flag="--port")
        if self._options.upstreams:
            return
        machine.require_free("127.0.0.1", self._options.engine_port, flag="--engine-port")
        if self._options.device == "cuda" and not machine.has_nvidia_gpu():
            raise LaunchError("--device cuda, but nvidia-smi names no GPU")

    def _plan(self) -> Plan:
        gateway = recipe.gateway(self.layout, development=False)
        check = recipe.gateway_check(self.layout, self._options)
        if self._options.upstreams:
            return Plan((gateway,), check, None, None, recipe.gateway_start(self.layout, self._options, None))
        device = machine.resolve(self._options.device)
        key = os.environ.get("REPRISE_GUARD_KEY") or secrets.token_hex(32)
        return Plan(
            installations=(gateway, recipe.engine(self.layout, device)),
            check=check,
            model=recipe.model(self.layout) if self._options.model is None else None,
            engine=recipe.engine_start(self.layout, self._options, device, key),
            gateway=recipe.gateway_start(self.layout, self._options, key),
        )

    def _install(self, plan: Plan, supervisor: Supervisor) -> None:
        installer = Installer(self.layout, supervisor, self._progress)
        with installer.exclusive():
            for installation in plan.installations:
                installer.ensure(installation)
                if installation.name == "gateway":
                    self._check_settings(plan.check, supervisor)
            if plan.model is not None:
                installer.make(plan.model)

    def _check_settings(self, command: Command, supervisor: Supervisor) -> None:
        """Let the gateway look at its settings before the engine takes its time. Raises LaunchError."""
        log = self.layout.log("gateway")
        log.unlink(missing_ok=True)
        with self._progress.step(command.label):
            if supervisor.run(command, log) != 0:
                raise LaunchError("the gateway cannot start with these settings", log=log)

    def _start(self, name: str, command: Command, supervisor: Supervisor, *, grace: float, url: str) -> None:
        """Start a program and wait until ``url`` answers 200. Raises LaunchError when it ends or takes too long."""
        log = self.layout.log(name)
        log.unlink(missing_ok=True)
        limit = self._options.start_timeout or START_LIMITS[name]
        deadline = time.monotonic() + limit
        with self._progress.step(command.label):
            supervisor.start(name, command, log, grace=grace)
            while True:
                _raise_if_ended(supervisor.wait(TICK))
                self._progress.tick()
                answer = readiness.ask(url)
                if answer.ready:
                    # Another program may have taken the port since it was checked, and answer in our child's place.
                    _raise_if_ended(supervisor.wait(TICK))
                    return
                if time.monotonic() > deadline:
                    raise LaunchError(f"the {name} was not ready after {limit:g} s: {answer.problem}", log=log)

    def _watch(self, supervisor: Supervisor) -> int:
        try:
            while True:
                _raise_if_ended(supervisor.wait(None))
        except Interrupted:
            self._progress.say("\nStopping; answers in flight have up to 30 s (once more: at once) ...")
            return 0

    def _ready_message(self, seconds: float) -> str:
        body = {
            "model": readiness.first_model(self._url),
            "messages": [{"role": "user", "content": "Name three prime numbers."}],
            "temperature": 0,
            "max_tokens": 32,
        }
        problem = readiness.isolation_problem(self._url)
        mode = "isolated" if problem is None else "standard"
        curl = (
            f"curl -i -w '\\n' {self._url}/v1/chat/completions -H 'content-type: application/json'"
            f" -H 'x-determinism-mode: {mode}' -d {shlex.quote(json.dumps(body))}"
        )
        promise = "An answer that was alone on the engine, with the headers that say so:"
        if problem is not None:
            promise = f"No request can be isolated here: {problem}.\nAn ordinary answer:"
        logs = ", ".join(self.layout.shown(self.layout.log(name)) for name in self._programs())
        return (
            f"\nReprise is ready at {self._url} (after {seconds:.0f} s).\n\n"
            f"{promise}\n\n{curl}\n\n"
            f"  observatory  {self._url}/observatory\n"
            f"  metrics      {self._url}/metrics\n"
            f"  docs         {self._url}/docs\n"
            f"  logs         {logs}\n"
            f"  stop         Ctrl-C\n"
        )

    def _programs(self) -> tuple[str, ...]:
        return ("gateway",) if self._options.upstreams else ("engine", "gateway")

    def _print(self, command: Command) -> None:
        self._progress.say(command.shown())
        if command.fallback is not None:
            self._progress.say(f"# if that fails: {command.fallback.shown()}")


def _raise_if_ended(event: Exited | None) -> None:
    if event is not None:
        how = f"exit code {event.code}" if event.code >= 0 else f"signal {signal.Signals(-event.code).name}"
        raise LaunchError(f"the {event.child.name} ended ({how}); everything is stopped", log=event.child.log)
