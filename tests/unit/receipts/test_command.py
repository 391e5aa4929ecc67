"""The command as a person and a script see it: exit status, standard output, standard error."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import __version__
from app.cli import main
from app.determinism.reading import read_unary
from app.receipts.signing import Signer, to_base64
from app.receipts.store import GateTimes
from app.state import StateDirectory
from tests.unit.receipts.made import INSTALLATION_KEY, REQUEST_ID, STRANGERS_KEY, VERIFIED, signed, to_json

ROOT = Path(__file__).resolve().parents[3]
OURS = to_base64(Signer(INSTALLATION_KEY).public_key)
STRANGERS = to_base64(Signer(STRANGERS_KEY).public_key)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of the installation that signed."""
    path = tmp_path / "state"
    path.mkdir()
    (path / "installation.key").write_bytes(INSTALLATION_KEY)
    return path


def file_of(tmp_path: Path, document: dict[str, Any]) -> str:
    path = tmp_path / "receipt.json"
    path.write_bytes(to_json(document))
    return str(path)


def receipt(*words: str | Path) -> int:
    """Run the command in this process."""
    return main(["receipt", *map(str, words)])


def test_a_good_receipt_says_what_it_states(tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0; whose key it was, then mode, mitigations, replica, posture, peak, intervals, output, line by line."""
    assert receipt("verify", file_of(tmp_path, signed()), "--state-dir", state) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        f"valid: signed by the key of the installation in {state}",
        f"  request     {REQUEST_ID}, finished 2026-09-21T14:13:20.250000Z, HTTP 200, ok",
        "  mode        isolated on /v1/chat/completions, model smollm2",
        "  mitigation  batch_isolation applied",
        "  mitigation  cache_bypass applied",
        "  mitigation  pinned_seed applied",
        "  sampling    temperature 0.7, seed 9223372036854775807",
        "  replica     127.0.0.1:8001, posture 5f0c1e",
        "  admission   exclusive, co-resident peak 1, waited 0.250000 s",
        "  interval    by the guard e-0011223344556677/7: exclusive, 1.750000 s from 1.250000 s on its clock, peak 1",
        f"  output      {'ab' * 32}, cohort {'cd' * 32}",
        f"  gateway     {__version__}",
    ]


def test_what_is_not_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown facts, missing mitigations and missing intervals are lines too."""
    document = signed(applied=(), replica="", posture="", admission="", peak=None, status=0, output=None)
    assert receipt("verify", file_of(tmp_path, document), "--key", OURS) == 0

    out = capsys.readouterr().out
    assert "no answer" in out
    assert "  mitigation  pinned_seed unavailable: the request ended before a replica had answered it\n" in out
    assert "  replica     unknown, posture unknown\n" in out
    assert "  interval    none: no replica was leased for the request\n" in out


def test_a_verified_answer_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Window, grid, passes and tokens, and how long the first ones took."""
    assert receipt("verify", file_of(tmp_path, signed(verification=VERIFIED)), "--key", OURS) == 0
    assert (
        "  verified    48 tokens (the first after 0.500000 s) in windows of 128 on the chain grid: passes 3 "
        "(1.234568 s), rollbacks 1, 30 of 40 drafted tokens accepted\n"
    ) in capsys.readouterr().out


def test_the_gateways_own_interval_is_called_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose word an interval is, is part of its line."""
    document = signed(gate=GateTimes(0, 500_000, 2_000_000))
    assert receipt("verify", file_of(tmp_path, document), "--key", OURS) == 0
    assert "by the gateway: exclusive, 1.500000 s from 0.500000 s on its clock, peak 1\n" in capsys.readouterr().out


def test_a_changed_receipt_is_not_valid(tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, one line that names the part, and nothing of what the receipt claims."""
    document = signed()
    document["receipt"]["coresident_peak"] = 2
    assert receipt("verify", file_of(tmp_path, document), "--state-dir", state) == 1

    out, err = capsys.readouterr()
    assert out == (
        "not valid: signature: it does not fit the receipt: one of the two was changed, or another key signed\n"
    )
    assert err == ""


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_truncated_file_is_not_valid(length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1; it says that it is no JSON, and where."""
    path = tmp_path / "receipt.json"
    path.write_bytes(to_json(signed())[:length])
    assert receipt("verify", path, "--key", OURS) == 1
    assert capsys.readouterr().out.startswith("not valid: file: it is not JSON: ")


def test_a_strangers_receipt_is_intact_and_not_trusted(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 3, the key that signed, whose it is not, and what the receipt states."""
    assert receipt("verify", file_of(tmp_path, signed(key=STRANGERS_KEY)), "--state-dir", state) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"intact, but not trusted: signed by {STRANGERS},",
        f"  not the key of the installation in {state}",
    ]
    assert lines[3] == "  mode        isolated on /v1/chat/completions, model smollm2"


def test_a_given_key_is_the_only_one_that_vouches(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --key the key of this machine does not count: the reader says whom he trusts."""
    assert receipt("verify", file_of(tmp_path, signed()), "--key", STRANGERS, "--state-dir", state) == 3
    assert f"  not the given key {STRANGERS}\n" in capsys.readouterr().out


@pytest.mark.parametrize("content", [OURS, f"{OURS}\n", json.dumps({"algorithm": "ed25519", "key": OURS})])
def test_a_key_may_be_in_a_file_and_be_one_of_several(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `reprise receipt key` prints it and as the gateway answers it; any of the given keys will do."""
    path = tmp_path / "key"
    path.write_text(content)
    assert receipt("verify", file_of(tmp_path, signed()), "--key", STRANGERS, "--key", path) == 0
    assert capsys.readouterr().out.startswith(f"valid: signed by the given key {path}\n")


def test_a_gateway_that_runs_does_not_stand_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its state directory is locked; its key is read all the same, and it is the one that it signs with."""
    directory = StateDirectory(tmp_path / "state")
    try:
        document = signed(key=directory.key)
        assert receipt("verify", file_of(tmp_path, document), "--state-dir", tmp_path / "state") == 0
        assert receipt("key", "--state-dir", tmp_path / "state") == 0
        assert capsys.readouterr().out.endswith(f"\n{to_base64(Signer(directory.key).public_key)}\n")
    finally:
        directory.close()


def test_the_key_is_one_line(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but the key on standard output, so that a script can take it."""
    assert receipt("key", "--state-dir", state) == 0
    assert capsys.readouterr() == (f"{OURS}\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "{dir}/missing.json", "--key", OURS], "{dir}/missing.json: No such file or directory"),
        (["verify", "{dir}", "--key", OURS], "{dir}: Is a directory"),
        (
            ["verify", "{dir}/good.json", "--key", "{dir}/missing.key"],
            "--key is neither 32 bytes in base64 nor a file: {dir}/missing.key: No such file or directory",
        ),
        (
            ["verify", "{dir}/good.json", "--key", OURS[:-4]],
            f"--key is neither 32 bytes in base64 nor a file: {OURS[:-4]}: No such file or directory",
        ),
        (
            ["verify", "{dir}/good.json", "--key", "{dir}/good.json"],
            "--key: {dir}/good.json holds no key of 32 bytes in base64",
        ),
        (["verify", "{dir}/good.json", "--state-dir", "{dir}/none"], "{dir}/none holds no installation key"),
        (
            ["verify", "{dir}/good.json", "--state-dir", "{dir}/odd"],
            "{dir}/odd/installation.key is no key of 32 bytes",
        ),
        (["verify", "{dir}/good.json", "--state-dir", "{dir}/new"], "{dir}/new holds no installation key"),
        (
            ["key", "--state-dir", "{dir}/none"],
            "{dir}/none holds no installation key; a gateway makes it at its first start",
        ),
        (["key", "--state-dir", "{dir}/dir"], "{dir}/dir/installation.key: Is a directory"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing on standard output, the file and the reason on standard error."""
    (tmp_path / "good.json").write_bytes(to_json(signed()))
    for name, key in (("odd", b"mine"), ("new", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "installation.key").write_bytes(key)
    (tmp_path / "dir" / "installation.key").mkdir(parents=True)

    assert receipt(*(word.replace("{dir}", str(tmp_path)) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"reprise receipt: {says.replace('{dir}', str(tmp_path))}\n"


@pytest.mark.parametrize("words", [[], ["verify"], ["sign", "x"], ["verify", "x", "--trust"]])
def test_a_wrong_usage_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As for every command of ours."""
    with pytest.raises(SystemExit) as caught:
        receipt(*words)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: reprise")


def run(tmp_path: Path, *words: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own, in an empty directory."""
    inherited = {name: value for name, value in os.environ.items() if name != "REPRISE_STATE_DIR"}
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "receipt", *words],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
    )


def test_standard_input_and_the_default_state_directory(tmp_path: Path, state: Path) -> None:
    """``-`` reads a pipe; the state directory is the environment's, as for the gateway, else the usual one."""
    text = to_json(signed())
    assert run(tmp_path, "verify", "-", stdin=text, REPRISE_STATE_DIR=str(state)).returncode == 0
    unknown = run(tmp_path, "verify", "-", stdin=text)
    assert unknown.returncode == 3
    assert b"not a key that is known here; name the one that you trust with --key\n" in unknown.stdout

    state.rename(tmp_path / ".reprise")
    known = run(tmp_path, "verify", "-", stdin=text)
    assert known.returncode == 0
    assert known.stdout.startswith(b"valid: signed by the key of the installation in .reprise\n")


def test_a_receipt_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a stranger's file holds is shown escaped: no control sequence, no line that looks like ours."""
    nasty = "\x1b[2K\rvalid: signed by you\n\u202e"
    document = signed(key=STRANGERS_KEY, replica=nasty, posture=nasty)
    assert receipt("verify", file_of(tmp_path, document), "--key", OURS) == 3
    document["receipt"][nasty] = document["receipt"][nasty + "2"] = None
    document["receipt"]["format"] = nasty
    assert receipt("verify", file_of(tmp_path, document), "--key", OURS) == 1
    (tmp_path / "twice.json").write_bytes(f"{{{json.dumps(nasty)}: 1, {json.dumps(nasty)}: 2}}".encode())
    assert receipt("verify", tmp_path / "twice.json", "--key", OURS) == 1

    out = capsys.readouterr().out
    assert set(out) <= {"\n", *map(chr, range(0x20, 0x7F))}
    assert not [line for line in out.splitlines() if line.startswith("valid")]


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("blue", 0, "valid: signed by"),
        ("red", 1, "not valid: answer: its output is o-"),
        (None, 2, "holds no answer of /v1/chat/completions in JSON"),
    ],
)
def test_an_answer_is_tied_to_its_receipt(
    text: str | None, status: int, says: str, tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The body that was received has the stated output, another one has not, and what is none cannot be checked."""

    def answer(content: str) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return json.dumps({"choices": [choice]}).encode()

    output = read_unary("/v1/chat/completions", answer("blue"))
    assert output is not None
    saved = tmp_path / "answer.json"
    saved.write_bytes(b"data: [DONE]" if text is None else answer(text))
    named = file_of(tmp_path, signed(output=output.digest))
    assert receipt("verify", named, "--state-dir", state, "--answer", saved) == status
    printed = capsys.readouterr()
    assert says in printed.out + printed.err
