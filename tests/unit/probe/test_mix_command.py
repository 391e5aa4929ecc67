"""``reprise probe --mix`` as a person and a script see it: options, exit status, standard output and error."""

import argparse
import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from app.probe.arguments import add_arguments
from app.probe.command import run
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.mix import MixPlan
from tests.unit.probe.scripted import completion
from tests.unit.probe.test_command import PROGRAM, Site, serving


class Confirming(BaseHTTPRequestHandler):
    """Answers at once, and confirms the mode; ``peak`` is what it says of every request."""

    protocol_version = "HTTP/1.1"
    server: Site
    peak = "1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Silence."""

    def do_GET(self) -> None:
        """The models."""
        self._send({"data": [{"id": "tiny"}]}, {})

    def do_POST(self) -> None:
        """An answer."""
        if self.server.stall_at is not None and next(self.server.asked) >= self.server.stall_at:
            self.server.stalled.set()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = {
            "x-determinism-mode": self.headers["x-determinism-mode"],
            "x-determinism-coresident-peak": self.peak,
            "x-determinism-admission-wait": "0.25",
            "x-determinism-replica": "one",
        }
        self._send(completion(self.path, body, shared=False), said)

    def _send(self, document: object, headers: dict[str, str]) -> None:
        payload = json.dumps(document).encode()
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Crowded(Confirming):
    """Says that nobody was alone."""

    peak = "2"


def mix_site(handler: type[Confirming], *, tell_at: int | None = None) -> Site:
    """A server on a loopback socket with such a handler; it says so when that many requests have come."""
    site = Site(stall_at=tell_at)
    site.RequestHandlerClass = handler
    return site


def parse(*words: str) -> argparse.Namespace:
    """The options as the command line reads them."""
    parser = argparse.ArgumentParser(prog="reprise probe")
    add_arguments(parser)
    return parser.parse_args(words)


def test_defaults() -> None:
    """Sixteen clients, a minute per percentage after five seconds; calibration comes with the document."""
    plan = MixPlan.of(parse("--mix", "0,5,10,25,50"), {})

    assert plan.percentages == (0.0, 5.0, 10.0, 25.0, 50.0)
    assert (plan.clients, plan.seconds, plan.warmup, plan.ladder) == (16, 60.0, 5.0, ())
    assert MixPlan.of(parse("--mix", "0", "--json"), {}).ladder == (1, 2, 4, 8, 16)
    assert MixPlan.of(parse("--mix", "0", "--json", "--no-calibrate"), {}).ladder == ()
    assert MixPlan.of(parse("--mix", "0", "--calibrate", "--load", "12"), {}).ladder == (1, 2, 4, 8, 12)


def test_the_load_is_8_without_mix_and_16_with_it_unless_given() -> None:
    """One option, two defaults; a number that was given counts in both."""
    assert Experiment.of(parse(), {}).load == 8
    assert MixPlan.of(parse("--mix", "0"), {}).clients == 16
    assert MixPlan.of(parse("--mix", "0", "--load", "8"), {}).clients == 8


def test_no_clients_cannot_be_measured() -> None:
    """--load 0 is named."""
    with pytest.raises(NotMeasurable, match="--load"):
        MixPlan.of(parse("--mix", "0", "--load", "0"), {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mix", "0,101"], "'101' is not a number from 0 to 100"),
        (["--mix", ""], "'' is not a number from 0 to 100"),
        (["--mix", "half"], "'half' is not a number from 0 to 100"),
        (["--mix", "0", "--seconds", "0"], "'0' is not a number from 0.1"),
    ],
)
def test_a_number_that_makes_no_sense_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The option's error says what it takes."""
    with pytest.raises(SystemExit) as caught:
        parse(*words)

    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mix", "0", "--repeats", "3", "--modes", "seeded"], "--modes, --repeats: no meaning beside --mix"),
        (["--seconds", "3"], "--seconds: no meaning without --mix"),
        (["--calibrate"], "--calibrate: no meaning without --mix"),
    ],
)
def test_options_of_the_other_measurement_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that would be ignored is an error in a line, not silence."""
    assert run(parse(*words)) == 2
    assert capsys.readouterr().err == f"reprise probe: {said}\n"


def test_a_table_and_its_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds the sweep and what its figures mean; away from a terminal a line says what begins."""
    with serving(mix_site(Confirming)) as site:
        words = ("--url", site.url, "--mix", "0,50", "--seconds", "0.3", "--warmup", "0", "--load", "2")
        status = run(parse(*words))

    out, err = capsys.readouterr()
    assert status == 0
    assert err.splitlines() == [
        "reprise probe: one request of each class",
        "reprise probe: 0 % isolated",
        "reprise probe: 50 % isolated",
    ]
    assert "tiny at" in out
    assert "0.25 / 0.25 s" in out
    assert "calibration" not in out


def test_json_is_one_document_with_its_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    """--json leaves nothing on standard output but the document, and the exit status is in it."""
    with serving(mix_site(Crowded)) as site:
        words = ("--url", site.url, "--mix", "50", "--seconds", "0.3", "--warmup", "0", "--load", "2", "--json")
        status = run(parse(*words))

    out, err = capsys.readouterr()
    document = json.loads(out)
    assert status == 1
    assert err.splitlines()[-1] == "reprise probe: 50 % isolated"
    assert document["exit_code"] == 1
    assert document["sweep"][0]["isolated"]["not_alone"] > 0
    assert [point["clients"] for point in document["calibration"]] == [1, 2]


def test_a_server_that_does_not_isolate_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output, one line on standard error that names the address."""
    with serving(Site()) as site:
        status = run(parse("--url", site.url, "--mix", "0,10"))

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    said = f"reprise probe: {site.url} did not confirm that a request in mode isolated was alone"
    assert err.splitlines()[-1] == said


def test_ctrl_c_before_the_first_window_is_one_line() -> None:
    """SIGINT ends the run at once with status 130; without a complete window nothing is claimed."""
    with serving(mix_site(Confirming, tell_at=10)) as site:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--url", site.url, "--mix", "0,50", "--seconds", "3600"],
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
    assert err.splitlines()[-1] == "reprise probe: interrupted before the first window was complete"
