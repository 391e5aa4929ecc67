"""The command as a person and a script see it: exit status, standard output, standard error."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from app.probe.arguments import add_arguments
from app.probe.command import run
from tests.unit.probe.scripted import completion

PROGRAM = """
import argparse, sys
from app.probe.arguments import add_arguments
from app.probe.command import run
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(run(parser.parse_args()))
"""


class Site(ThreadingHTTPServer):
    """A server on a loopback socket. From the ``stall_at``-th completion on, it says so and answers no more."""

    daemon_threads = True

    def __init__(self, *, stall_at: int | None = None, forked: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stall_at = stall_at
        self.forked = forked
        self.asked = count(1)
        self.stalled = threading.Event()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Silence."""

    def do_GET(self) -> None:
        """The models."""
        self._send({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        """An answer; with ``forked`` every one but the first four differs."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        turn = next(self.server.asked)
        if self.server.stall_at is not None and turn >= self.server.stall_at:
            self.server.stalled.set()
            self.server.released.wait()
        self._send(completion(self.path, body, shared=self.server.forked and turn > 4))

    def _send(self, document: object) -> None:
        payload = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Run the server for the length of the block."""
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        site.shutdown()
        thread.join()
        site.server_close()


def probe(*words: str) -> int:
    """Run the command in this process."""
    parser = argparse.ArgumentParser(prog="reprise probe")
    add_arguments(parser)
    return run(parser.parse_args([*words]))


def told(err: str) -> list[str]:
    """The lines that say what begins; on a busy machine there are some that say how far it is."""
    lines = [line.removeprefix("reprise probe: ") for line in err.splitlines()]
    return [line for line in lines if " of " not in line]


def test_a_table_and_its_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds the table and the closing sentence; away from a terminal a line says what begins."""
    with serving(Site()) as site:
        status = probe(
            "--url", site.url, "--modes", "standard,isolated", "--repeats", "2", "--load", "2", "--tokens", "8"
        )

    out, err = capsys.readouterr()
    assert status == 0
    assert "tiny at" in out
    assert out.count("0 of 8, below 31.3 % (95 %)") >= 2
    assert "not never" in " ".join(out.split())
    assert told(err) == ["standard, 12 requests", "isolated, 12 requests"]


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """--json leaves nothing on standard output but the document, and the exit status is in it."""
    with serving(Site(forked=True)) as site:
        words = ("--url", site.url, "--modes", "isolated", "--repeats", "2", "--load", "0", "--tokens", "8", "--json")
        status = probe(*words)

    out, err = capsys.readouterr()
    document = json.loads(out)
    assert status == document["exit_code"] == 1
    assert document["modes"][0]["diverged"]["k"] == 8
    assert told(err) == ["isolated, 12 requests"]


def test_an_unreachable_gateway_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output, one line on standard error that names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status = probe("--url", url)

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err == f"reprise probe: cannot reach {url}: connection refused or host unknown\n"


def test_a_bad_option_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that parses but makes no sense is named."""
    assert probe("--url", "nowhere") == 2
    assert capsys.readouterr().err == "reprise probe: --url: 'nowhere' is not an http or https address\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_the_rows_so_far(as_json: bool) -> None:
    """SIGINT ends the run at once with status 130, and what had been measured is printed."""
    # 4 references and 4 repeats of the first mode, 4 references and 2 repeats of the second, then silence.
    with serving(Site(stall_at=15)) as site:
        words = [
            "--url",
            site.url,
            "--modes",
            "standard,isolated",
            "--repeats",
            "1",
            "--load",
            "0",
            "--concurrency",
            "1",
        ]
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words, *(["--json"] if as_json else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert site.stalled.wait(60)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()

    assert child.returncode == 130
    assert told(err) == ["standard, 8 requests", "isolated, 8 requests"]
    if as_json:
        document = json.loads(out)
        assert document["interrupted"]
        assert [mode["diverged"]["n"] for mode in document["modes"]] == [4, 2]
    else:
        assert "2 of 4" in out
        assert "Interrupted" in out


def test_ctrl_c_before_the_first_answer_is_one_line() -> None:
    """Interrupted with nothing measured, the command says so and claims nothing."""
    with serving(Site(stall_at=1)) as site:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--url", site.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert site.stalled.wait(60)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()

    assert (child.returncode, out) == (130, "")
    assert err == "reprise probe: interrupted before the first answer\n"
