"""The CPU time that the gateway spends per request and per streamed chunk, next to other proxies in the same run.

    python tests/benchmarks/overhead.py [--stream] [--requests 6000] [--rounds 5] [--unrecorded]
        [--beside NAME=PORT ...]

Starts a minimal upstream on port 9100 and a gateway before it on port 9101; with --unrecorded also one on port 9102
that does not look at answers. Proxies named by --beside must stand before port 9100 and listen already (vllm-router
waits for its worker, so start it first). The rounds are interleaved over the proxies, so that a noisy moment hits them
alike; the median is printed with its ratio to the first --beside, else to the first gateway. CPU time is user and
system time of the listening process and its children, from /proc. Needs the load
generator `hey` (Debian package hey) and `ss` (iproute2).
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM_PORT, GATEWAY_PORT, UNRECORDED_PORT = 9100, 9101, 9102
TOKENS = 200
CHUNKS = TOKENS + 2  # the tokens, the finish chunk and [DONE]
TICKS = os.sysconf("SC_CLK_TCK")
USAGE = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
BASE = {"id": "chatcmpl-1", "created": 1, "model": "m"}
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"}]}
PAGES = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model","root":"m"}]}',
    b"/version": b'{"version":"0.32.0"}',
    b"/metrics": b"vllm:num_requests_running 0.0\n",
    b"/health": b"",
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The upstream: a fixed JSON answer at once, or a stream of 200 chunks, one every 5 ms."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            path = head.split(b" ", 2)[1]
            if head.startswith(b"GET"):
                writer.write(plain(PAGES.get(path, b"{}"), b"200 OK" if path in PAGES else b"404 Not Found"))
            elif json.loads(body).get("stream"):
                await stream(writer)
            else:
                writer.write(
                    plain(json.dumps({**BASE, "object": "chat.completion", **ANSWER, "usage": USAGE}).encode())
                )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    """A unary answer."""
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


async def stream(writer: asyncio.StreamWriter) -> None:
    """A streamed answer."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    events = [({"content": f"t{number} "}, None) for number in range(TOKENS)]
    for delta, end in [*events, ({}, "stop")]:
        choices = [{"index": 0, "delta": delta, "finish_reason": end}]
        write_chunk(writer, json.dumps({**BASE, "object": "chat.completion.chunk", "choices": choices}).encode())
        await writer.drain()
        await asyncio.sleep(0.005)  # the pace of an engine
    write_chunk(writer, b"[DONE]")
    writer.write(b"0\r\n\r\n")


def write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


async def upstream(started: threading.Event) -> None:
    """Run the upstream for ever."""
    async with await asyncio.start_server(serve, "127.0.0.1", UPSTREAM_PORT, limit=2**26, backlog=1024) as server:
        started.set()
        await server.serve_forever()


def family(port: int) -> set[int]:
    """The processes that listen on a port, and their children."""
    argv = ["/usr/bin/env", "ss", "-ltnpH", f"sport = :{port}"]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = {int(pid) for pid in re.findall(r"pid=(\d+)", out)}
    parents = {int(path.name): int(stat(path)[1]) for path in Path("/proc").glob("[0-9]*")}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat from the state on; zeros for a process that has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def cpu_seconds(pids: set[int]) -> float:
    """User and system time of some processes."""
    return sum(int(field) for pid in pids for field in stat(Path(f"/proc/{pid}"))[11:13]) / TICKS


def measure(port: int, requests: int, body: Path) -> float:
    """CPU seconds per request of the proxy on a port, 16 requests at a time."""
    pids = family(port)
    before = cpu_seconds(pids)
    argv = ["hey", "-m", "POST", "-T", "application/json", "-D", str(body), "-c", "16", "-n", str(requests)]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    out = subprocess.run([*argv, url], capture_output=True, text=True, check=True).stdout
    answered = sum(int(count) for count in re.findall(r"\[200\]\s+(\d+) responses", out))
    if answered < requests // 16 * 16:
        raise SystemExit(f"port {port}: only {answered} of {requests} answers were 200")
    return (cpu_seconds(pids) - before) / answered


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unrecorded", action="store_true")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=PORT")
    arguments = parser.parse_args()
    requests = 64 if arguments.stream else arguments.requests
    proxies = {name: int(port) for name, _, port in (one.partition("=") for one in arguments.beside)}
    gateways = ({"unrecorded": UNRECORDED_PORT} if arguments.unrecorded else {}) | {"reprise": GATEWAY_PORT}
    messages = [{"role": "user", "content": "word " * 200}]
    asked = {"model": "m", "messages": messages, "temperature": 0.0, "max_tokens": TOKENS, "seed": 1}
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body.json"
        body.write_text(json.dumps({**asked, "stream": arguments.stream}))
        running = [start(port, Path(folder) / name, recording=name == "reprise") for name, port in gateways.items()]
        try:
            for port in (*proxies.values(), *gateways.values()):
                wait_for(port, body.read_bytes())
            figures: dict[str, list[float]] = {}
            for round_number in range(arguments.rounds + 1):  # the first warms up
                for name, port in {**proxies, **gateways}.items():
                    seconds = measure(port, requests, body)
                    if round_number:
                        figures.setdefault(name, []).append(seconds * 1e6 / (CHUNKS if arguments.stream else 1))
        finally:
            for gateway in running:
                gateway.terminate()
            for gateway in running:
                gateway.wait(20)
    show(figures, "us/chunk" if arguments.stream else "us/request")


def start(port: int, state: Path, *, recording: bool) -> "subprocess.Popen[bytes]":
    """A gateway before the upstream."""
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--state-dir", str(state)]
    return subprocess.Popen(
        [*argv, "--upstream", f"http://127.0.0.1:{UPSTREAM_PORT}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "REPRISE_RECORDING": str(recording).lower()},
        stderr=subprocess.DEVNULL,
    )


def wait_for(port: int, body: bytes) -> None:
    """Ask until a proxy passes an answer on."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
    for _ in range(900):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - a loopback address of ours
                answer.read()
                return
        except OSError:
            time.sleep(0.1)  # noqa: TID251 - another process is on its way
    raise SystemExit(f"port {port} passed no answer on in time")


def show(figures: dict[str, list[float]], unit: str) -> None:
    """Print medians and ratios."""
    first = statistics.median(next(iter(figures.values())))
    for name, values in figures.items():
        median = statistics.median(values)
        spread = f"min {min(values):.1f}  max {max(values):.1f}"
        print(f"{name:16s} {median:8.1f} {unit}   {spread}   x{median / first:.2f}")  # noqa: T201 - it prints


if __name__ == "__main__":
    ready = threading.Event()
    threading.Thread(target=lambda: asyncio.run(upstream(ready)), daemon=True).start()
    ready.wait(5)
    main()
