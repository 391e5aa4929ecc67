"""How long after a client leaves the upstream learns of it: principle 6 of the design, measured.

    python tests/benchmarks/leaving.py [CLIENTS]

Every client asks for a stream and cuts its connection in one of three phases: before the upstream answered, after the
first events, and while it waits for its turn behind an exclusive request (where its request must never be sent at all).
The time is from the client's abort to the end of the connection at the scripted upstream, both in this process. Prints
percentiles in milliseconds; nothing is asserted, because shared machines are noisy.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.running import CHAT, RunningGateway, request_bytes, running_gateway, start
from tests.support.scripted import ScriptedVllm

PHASES: dict[str, dict[str, object]] = {
    "before the headers": {"do": "silent"},
    "in the stream": {"do": "stream", "events": 2, "then": "silent"},
}


async def leave(gateway: RunningGateway, upstream: ScriptedVllm, script: dict[str, object], mode: str) -> float:
    """The seconds between one client's abort and the upstream's notice."""
    body = {"model": "m", "stream": True, "determinism": mode, "x_script": script}
    async with gateway.connection() as (reader, writer):
        count = len(upstream.received)
        writer.write(request_bytes("POST", CHAT, json.dumps(body).encode(), {}))
        received = await upstream.until(count + 1)
        if script["do"] == "stream":
            await reader.readuntil(b"finish_reason")
        writer.transport.abort()
        began = time.perf_counter()
        await received.closed_by_client.wait()
        return time.perf_counter() - began


async def leave_the_queue(gateway: RunningGateway, upstream: ScriptedVllm, clients: int) -> int:
    """Clients that leave while they wait; how many of their requests were sent all the same."""
    upstream.release.clear()
    before = len(upstream.received)
    holder = start(gateway.post({"model": "m", "determinism": "isolated", "x_script": {"hold": 1}}))
    await upstream.until(before + 1)
    for _ in range(clients):
        async with gateway.connection() as (_reader, writer):
            writer.write(request_bytes("POST", CHAT, b'{"model":"m"}', {}))
            while (await gateway.get("/readyz")).json()["replicas"][0]["leases"] < 2:
                pass
            writer.transport.abort()
        while (await gateway.get("/readyz")).json()["replicas"][0]["leases"] > 1:
            pass
    upstream.release.set()
    await holder
    return len(upstream.received) - before - 1


async def main(clients: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedVllm().serve() as upstream, running_gateway(Path(folder), upstream.url) as gateway:
            for phase, script in PHASES.items():
                for mode in ("standard", "isolated"):
                    times = sorted([await leave(gateway, upstream, script, mode) for _ in range(clients)])
                    shown = {
                        name: times[int(part * (clients - 1))] * 1e3
                        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1))
                    }
                    print(f"{phase:20s} {mode:9s} n={clients}", *(f"{name} {ms:.1f} ms" for name, ms in shown.items()))  # noqa: T201 - a benchmark prints
            sent = await leave_the_queue(gateway, upstream, clients)
            print(f"in the queue         n={clients} sent all the same: {sent}")  # noqa: T201 - a benchmark prints


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
