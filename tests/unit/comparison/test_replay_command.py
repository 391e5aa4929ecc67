"""`reprise replay` as a person and a script see it, Ctrl-C among it."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.cli import main
from tests.unit.comparison.made import answer, line, written

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from app.cli import main; sys.exit(main())"


class Site(ThreadingHTTPServer):
    """A server on a loopback socket: it answers with the question, fails at "bad", and never answers "stall"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
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
        self._send(200, {"data": []})

    def do_POST(self) -> None:
        """An answer, a failure, or silence."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
        if asked == "stall":
            self.server.stalled.set()
            self.server.released.wait()
        self._send(500 if asked == "bad" else 200, {"error": {"message": "no"}} if asked == "bad" else answer(asked))

    def _send(self, status: int, document: object) -> None:
        payload = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        site.shutdown()
        thread.join()
        site.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def test_a_file_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line answered: status 0, and the file is one that can be compared with the first."""
    Path("a").write_bytes(written(line("q", answer("q")), line("r", answer("s"))))
    with serving() as site:
        assert main(["replay", "a", "--url", site.url, "--out", "b"]) == 0
    assert capsys.readouterr().err == "reprise replay: 2 of 2 answered\n"

    assert main(["compare", "a", "b", "--fail-on-difference"]) == 1
    assert "1 of 2 agree" in capsys.readouterr().out


def test_failures_are_told_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, a line for each request all the same, and the failed one says why."""
    Path("a").write_bytes(written(line("q", None), line("bad", None)))
    with serving() as site:
        assert main(["replay", "a", "--url", f"{site.url}/v1"]) == 1
    out, err = capsys.readouterr()

    assert err == "reprise replay: 1 of 2 answered, 1 failed (their lines say why)\n"
    assert [json.loads(each).get("error") for each in out.splitlines()] == [None, "HTTP 500: no"]


def test_replay_and_comparison_in_one_go(capsys: pytest.CaptureFixture[str]) -> None:
    """``compare --replay`` asks now, compares with the file's own answers, and can keep what came."""
    Path("a").write_bytes(written(line("q", answer("q")), line("bad", answer("x")), line("r", answer("s"))))
    with serving() as site:
        assert main(["compare", "a", "--replay", "--url", site.url, "--out", "b", "--model", "other"]) == 0
    out = capsys.readouterr().out

    assert "1 of 2 agree" in out
    assert "1: B: HTTP 500: no" in out
    assert len(Path("b").read_bytes().splitlines()) == 3


@pytest.mark.parametrize("command", ["replay", "compare"])
def test_an_interruption_keeps_what_was_answered(command: str) -> None:
    """Ctrl-C while a request hangs: status 130, and every line in the file is whole."""
    Path("a").write_bytes(written(line("q", answer("q")), line("stall", None), line("r", answer("s"))))
    words = ["compare", "a", "--replay"] if command == "compare" else ["replay", "a"]
    with serving() as site:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words, "--url", site.url, "--out", "b", "--concurrency", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert site.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert [json.loads(each)["answer"] for each in Path("b").read_text().splitlines()] == [answer("q")]
    assert "1 of 3 answered" in err or "Interrupted" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing"], "missing: No such file"),
        (["a", "--out", "a"], "a: it is read, so it cannot be written"),
        (["a", "--url", "http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9: connection refused"),
        (["a", "--run", "no label"], "--run: a label"),
        (["result"], "result:1: there is no request to send"),
    ],
)
def test_unusable_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, one line, and the input is as it was."""
    Path("a").write_bytes(content := written(line("q", None)))
    Path("result").write_bytes(written({"custom_id": "1", "response": {"body": answer("a")}}))

    assert main(["replay", *words]) == 2
    assert capsys.readouterr().err.startswith(f"reprise replay: {said}")
    assert Path("a").read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be written ends the replay with a clear error, not with a traceback."""
    Path("a").write_bytes(written(*(line(str(n), None) for n in range(9))))
    with serving() as site:
        assert main(["replay", "a", "--url", site.url, "--out", "/dev/full"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "reprise replay: /dev/full: No space left on device"


def test_no_half_line_is_left_behind(tmp_path: Path) -> None:
    """Where only a part of a line fits, it is taken back: the file ends with the last whole one."""
    script = (
        "import resource, signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from app.comparison.entry import NotComparable\n"
        "from app.comparison.replay_command import writing\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "with writing('lines', []) as out:\n"
        "    out(b'1234567\\n')\n"
        "    try:\n"
        "        out(b'1234567\\n')\n"
        "    except NotComparable as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout == "lines: No space left on device\n"
    assert (tmp_path / "lines").read_bytes() == b"1234567\n"
