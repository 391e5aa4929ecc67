"""The page at ``/observatory``: static files without a build step, read once when the gateway starts."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

_KINDS: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def read_assets() -> Mapping[str, tuple[str, bytes]]:
    """The files by name: content type and bytes."""
    found = {}
    for file in files(__name__).iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            found[file.name] = (kind, file.read_bytes())
    return found
