"""Our gate next to a plain FIFO writer lock, on one real vLLM, in one run: tokens/s and what shared requests wait.

    python tests/benchmarks/fairness.py [--percent 10] [--seconds 60] [--rounds 3] [--clients 16]

Starts the bundled engine with `tests.benchmarks.fifo_guard.SwitchingGuard` in place of the guard and a gateway before
it, and lets ``reprise probe --mix`` measure: 0 % once, then the percentage under each gate in turn, so that a machine
that grows slower hits both. Retention is against that 0 %. Needs `./deploy/test` or `./deploy/up` to have been run
once. Nothing is asserted, because shared machines are noisy; the table is the result.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.conftest import ROOT, free_port, running, wait_for

GATES = ("fifo", "fair")


def engine_argv(port: int) -> list[str]:
    """The deterministic profile's command with the other guard."""
    python = ROOT / ".venv-engine" / "bin" / "python"
    argv = [str(python), "-m", "app.cli", "engine", "--profile", "deterministic", "--target", "cpu", "--print"]
    argv += ["--model", str(ROOT / ".models" / "SmolLM2-135M-Instruct"), "--served-model-name", "smollm2"]
    shown = subprocess.run(
        [*argv, "--port", str(port)], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    line = shown.stdout.strip().replace("app.engine.guard.Guard", "tests.benchmarks.fifo_guard.SwitchingGuard")
    return ["/bin/sh", "-c", f"exec env {line}"]


def switch(engine: str, key: str, gate: str) -> None:
    """Change the engine's gate once nothing runs there."""
    with httpx.Client(trust_env=False, headers={"x-determinism-guard-key": key}) as client:
        while client.post(f"{engine}/benchmark/gate/{gate}").status_code != httpx.codes.OK:
            time.sleep(0.2)  # noqa: TID251 - another process has to run empty


def measure(gateway: str, percent: float, chosen: argparse.Namespace) -> dict[str, Any]:
    """One run of the probe at one percentage."""
    argv = [sys.executable, "-m", "app.cli", "probe", "--url", gateway, "--mix", f"{percent:g}", "--json"]
    argv += ["--no-calibrate", "--seconds", str(chosen.seconds), "--load", str(chosen.clients)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    row: dict[str, Any] = json.loads(done.stdout)["sweep"][-1]
    return row


def show(gate: str, row: dict[str, Any], base: float) -> None:
    """One line; ``base`` is the tokens/s at 0 %."""
    shared, isolated = row["shared"]["wait_seconds"], row["isolated"]["wait_seconds"]
    print(  # noqa: T201 - a benchmark prints
        f"{gate:5s} {row['tokens_per_second']:7.1f} tokens/s  retention {row['tokens_per_second'] / base:6.1%}  "
        f"shared wait p50 {shared['p50']:5.2f} p99 {shared['p99']:6.2f} s  "
        f"isolated wait p50 {isolated['p50']:5.2f} p99 {isolated['p99']:6.2f} s  "
        f"exclusive {row['exclusive_time_share']:5.1%}  "
        f"answers {row['shared']['answers']} + {row['isolated']['answers']}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--percent", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    chosen = parser.parse_args()
    key, port, own = secrets.token_hex(16), free_port(), free_port()
    engine, gateway = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"
    serve = [sys.executable, "-m", "app.cli", "serve", "--port", str(own), "--upstream", engine]
    rows: dict[str, list[dict[str, Any]]] = {gate: [] for gate in GATES}
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with running(engine_argv(port), state / "engine", REPRISE_GUARD_KEY=key) as check:
            wait_for(f"{engine}/reprise/posture", {"x-determinism-guard-key": key}, check)
            with running([*serve, "--state-dir", folder], state / "gateway", REPRISE_GUARD_KEY=key) as alive:
                wait_for(f"{gateway}/readyz", {}, alive)
                base = float(measure(gateway, 0.0, chosen)["tokens_per_second"])
                print(f"0 %   {base:7.1f} tokens/s", flush=True)  # noqa: T201 - a benchmark prints
                for _ in range(chosen.rounds):
                    for gate in GATES:
                        switch(engine, key, gate)
                        rows[gate].append(measure(gateway, chosen.percent, chosen))
                        show(gate, rows[gate][-1], base)
    fifo, fair = (fmean(row["tokens_per_second"] for row in rows[gate]) for gate in GATES)
    waits = [fmean(row["shared"]["wait_seconds"]["p99"] for row in rows[gate]) for gate in GATES]
    print(f"fair over fifo, means: {fair / fifo:.2f} x tokens/s, {waits[1] / waits[0]:.2f} x shared p99 wait")  # noqa: T201 - as above


if __name__ == "__main__":
    main()
