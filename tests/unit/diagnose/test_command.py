"""The command as a person and a script see it: exit status, standard output, standard error, over real sockets."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import cli
from app.diagnose.rungs import Rung
from tests.unit.diagnose.scripted import LIMITED, Asked, Server, refusal

KEY = "sk-very-secret"
PROMPTS = 2
SEARCH = 2 + 2 * PROMPTS
"""Requests with which the server is looked at before the ladder."""


class Site(ThreadingHTTPServer):
    """A scripted server on a loopback socket. From the ``stall_at``-th request on, it says so and answers no more."""

    daemon_threads = True

    def __init__(self, server: Server, *, stall_at: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = server
        self.turn = threading.Lock()
        self.stall_at = stall_at
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.looks = 0
        self.neighbours: list[bool] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Silence."""

    def do_GET(self) -> None:
        """The models."""
        self.server.looks += 1
        self._send(self._answer(b""))

    def do_POST(self) -> None:
        """An answer, or the beginning of a neighbour's, who then waits until its client leaves."""
        body = self.rfile.read(int(self.headers["content-length"]))
        site = self.server
        if site.stall_at is not None and len(site.server.asked) + 1 >= site.stall_at:
            site.stalled.set()
            site.released.wait()
        response = self._answer(body)
        if not json.loads(body).get("stream") or response.is_error:
            self._send(response)
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"data: {}\n\n")
        # A client that leaves closes its side.
        site.neighbours.append(self.connection.recv(1) == b"")

    def _answer(self, body: bytes) -> httpx.Response:
        request = httpx.Request(
            self.command, f"{self.server.url}{self.path}", content=body, headers=[*self.headers.items()]
        )
        with self.server.turn:
            return asyncio.run(self.server.server.handle(request))

    def _send(self, response: httpx.Response) -> None:
        self.send_response(response.status_code)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.content)


@contextmanager
def serving(server: Server | None = None, *, stall_at: int | None = None) -> Iterator[Site]:
    """Run a site for the length of the block."""
    site = Site(Server() if server is None else server, stall_at=stall_at)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        site.shutdown()
        thread.join()
        site.server_close()


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A file of prompts."""
    path = tmp_path / "prompts.txt"
    path.write_text("one two three\nfour five\n")
    return str(path)


@pytest.fixture
def words(prompts: str) -> list[str]:
    """The options of a small ladder."""
    return ["--prompts", prompts, "--tokens", "6", "--repeats", "2", "--batch-sizes", "2", "--budget", "60s"]


def diagnose(url: str, *options: str) -> int:
    """The command in this process."""
    return cli.main(["diagnose", "--url", url, *options])


def parting(asked: Asked, document: dict[str, Any]) -> None:
    """A server whose batches make another text."""
    if len(asked.prompts) > 1:
        for choice in document["choices"]:
            choice["token_ids"][2:] = [9000 + place for place in range(len(choice["token_ids"]) - 2)]


# --- a run -----------------------------------------------------------------------------------------------------------


def test_tables_sentences_and_progress(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Findings and rungs on standard output; away from a terminal a line on standard error says what begins."""
    with serving() as site:
        status = diagnose(site.url, *words)

    out, err = capsys.readouterr()
    assert status == 0
    assert f"scripted at {site.url}: {PROMPTS} prompts, 6 tokens, temperature 0" in out
    assert "tokens 0 of " in out
    assert "L3 framework: not seen" in out
    assert "Tokens did not change." in out
    told = [line.removeprefix("reprise diagnose: ") for line in err.splitlines()]
    climbed = [rung.value for rung in (Rung.ALONE, Rung.BATCH, Rung.CACHE, Rung.KV)]
    assert told == ["looking at the server", *climbed]
    # Over real connections each neighbour ran until its client left.
    assert site.neighbours
    assert all(site.neighbours)


def test_json_is_one_document_without_the_key(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing else is on standard output, the exit status is in it, and the API key is nowhere."""
    page = tmp_path / "report.html"
    with serving() as site:
        status = diagnose(site.url, *words, "--json", "--api-key", KEY, "--html", str(page))

    out, err = capsys.readouterr()
    document = json.loads(out)
    assert status == document["exit_code"] == 0
    assert (document["format"], document["url"], document["model"]) == ("reprise-diagnose/1", site.url, "scripted")
    assert {asked.headers["authorization"] for asked in site.server.asked} == {f"Bearer {KEY}"}
    assert KEY not in out + err + page.read_text()


def test_the_key_may_come_from_the_environment(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenAI's clients take it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving() as site:
        assert diagnose(site.url, *words, "--json") == 0

    assert {asked.headers["authorization"] for asked in site.server.asked} == {f"Bearer {KEY}"}
    out, err = capsys.readouterr()
    assert KEY not in out + err


@pytest.mark.parametrize(
    ("options", "expected"), [((), 0), (("--fail-on", "never"), 0), (("--fail-on", "diverged"), 1)]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_tokens_that_changed_are_a_failure_where_that_was_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: int, as_json: bool
) -> None:
    """--fail-on diverged, with the same findings printed."""
    with serving(Server(change=parting)) as site:
        status = diagnose(site.url, *words, *options, *(["--json"] if as_json else []))

    out, _ = capsys.readouterr()
    assert status == expected
    if as_json:
        document = json.loads(out)
        assert (document["exit_code"], document["diverged"]) == (expected, True)
    else:
        assert "present" in out


def test_a_server_that_does_not_diverge_is_no_failure(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--fail-on diverged on a clean server."""
    with serving() as site:
        assert diagnose(site.url, *words, "--fail-on", "diverged") == 0

    assert "present" not in capsys.readouterr().out


def test_a_run_that_tested_nothing_is_status_2_and_says_why(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables are printed all the same, with the reason."""
    limited = Server(refuse=lambda number, _asked: refusal(LIMITED, "slow down") if number > SEARCH else None)
    with serving(limited) as site:
        assert diagnose(site.url, *words, "--fail-on", "diverged") == 2

    out, _ = capsys.readouterr()
    assert "untested" in out
    assert "rate limited, HTTP 429: slow down" in out


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_written(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Beside the tables, and standard error says where."""
    page = tmp_path / "report.html"
    with serving() as site:
        assert diagnose(site.url, *words, "--html", str(page)) == 0

    out, err = capsys.readouterr()
    assert page.read_text().startswith("<!doctype html>")
    assert "The ladder" in out
    assert err.splitlines()[-1] == f"reprise diagnose: the page is {page}"


@pytest.mark.parametrize(("name", "said"), [("missing/report.html", "no such folder"), (".", "it is a folder")])
def test_a_page_that_cannot_be_written_is_said_before_the_run(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, said: str
) -> None:
    """One line that names the option, and the server is not asked for anything."""
    with serving() as site:
        status = diagnose(site.url, *words, "--html", str(tmp_path / name))

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err == f"reprise diagnose: --html: cannot write {tmp_path / name}: {said}\n"
    assert site.looks == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_that_is_lost_in_the_end_does_not_cost_the_findings(
    words: list[str], capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """A disk that is full after the run: the findings are printed, and the status says that something is missing."""
    with serving() as site:
        status = diagnose(site.url, *words, "--html", "/dev/full", *(["--json"] if as_json else []))

    out, err = capsys.readouterr()
    assert status == 2
    assert err.splitlines()[-1].startswith("reprise diagnose: --html: cannot write /dev/full: No space left")
    if as_json:
        assert json.loads(out)["exit_code"] == 2
    else:
        assert "L3 framework: not seen" in out


# --- what cannot be run ----------------------------------------------------------------------------------------------


def test_an_unreachable_server_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output, and a line that names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status = diagnose(url)

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "reprise diagnose: looking at the server",
        f"reprise diagnose: cannot reach {url}: connection refused or host unknown",
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--url", "nowhere"), "--url: 'nowhere' is not an http or https address"),
        (("--replica", "ftp://host"), "--replica: 'ftp://host' is not an http or https address"),
        (("--replica", "http://a", "--replica", "http://a/v1"), "--replica: names the same server twice"),
        (("--prompts", "/nowhere/prompts"), "--prompts: cannot read /nowhere/prompts: No such file or directory"),
        (("--api-key", "a\nb"), "--api-key: the key holds characters that no HTTP header can carry"),
    ],
)
def test_a_bad_option_is_named_in_one_line(
    options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that parses but makes no sense ends the command before anything is asked."""
    assert cli.main(["diagnose", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"reprise diagnose: {line}\n")


def test_an_unknown_model_is_answered_with_those_that_are_served(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option's name."""
    with serving() as site:
        assert diagnose(site.url, *words, "--model", "other") == 2

    assert (
        f"reprise diagnose: --model: {site.url} does not serve 'other'; it serves scripted\n" in capsys.readouterr().err
    )


# --- ctrl-c and terminals --------------------------------------------------------------------------------------------

PROGRAM = [sys.executable, "-m", "app.cli", "diagnose"]


def interrupted(words: list[str], stall_at: int, *more: str) -> tuple[int, str, str]:
    """Status and outputs of a run that is interrupted at a request."""
    with serving(stall_at=stall_at) as site:
        child = subprocess.Popen(
            [*PROGRAM, "--url", site.url, *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert site.stalled.wait(60)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
    return child.returncode, out, err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_reports_what_there_is(words: list[str], tmp_path: Path, as_json: bool) -> None:
    """SIGINT ends the run at once with status 130; the findings so far are printed, and the page is written."""
    page = tmp_path / "report.html"
    more = ["--html", str(page), "--fail-on", "diverged", *(["--json"] if as_json else [])]
    # Three rounds alone, and one answer of the next rung.
    status, out, err = interrupted(words, SEARCH + 3 * PROMPTS + 2, *more)

    assert status == 130
    assert err.splitlines()[-1] == f"reprise diagnose: the page is {page}"
    assert "Traceback" not in err
    assert "Interrupted" in page.read_text()
    if as_json:
        document = json.loads(out)
        assert (document["interrupted"], document["exit_code"]) == (True, 130)
        assert (document["rungs"]["alone"]["rounds"], document["rungs"]["batch"]["rounds"]) == (3, 0)
    else:
        assert "Interrupted: the findings are on what had been answered by then." in out
        assert "it was not reached" in out


def test_ctrl_c_before_the_ladder_is_one_line(words: list[str], tmp_path: Path) -> None:
    """Nothing is claimed, and no page is written."""
    page = tmp_path / "report.html"
    status, out, err = interrupted(words, SEARCH, "--html", str(page))

    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == "reprise diagnose: interrupted before the ladder began"
    assert not page.exists()


def test_a_terminal_sees_a_bar_of_the_budget(words: list[str]) -> None:
    """On a terminal's standard error, instead of lines; the tables are on standard output as ever."""
    ours, theirs = pty.openpty()
    with serving() as site:
        child = subprocess.Popen(
            [*PROGRAM, "--url", site.url, *words],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        seen = b""
        while piece := _read(ours):
            seen += piece
        out, _ = child.communicate(timeout=60)
        os.close(ours)

    assert child.returncode == 0
    assert b"of the budget" in seen
    assert b"looking at the server" in seen
    assert b"reprise diagnose:" not in seen
    assert b"The ladder" in out


def _read(terminal: int) -> bytes:
    """What a terminal shows next; nothing once the other side is closed."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""
