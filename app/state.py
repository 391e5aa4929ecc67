"""The state directory of one gateway: its installation key and its ledger, held by one process at a time."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

INSTALLATION_KEY: Final = "installation.key"
"""The file that holds the installation's key."""

_KEY_BYTES: Final = 32


class StateDirectory:
    """An open state directory. ``key`` is the installation's: without it no cohort key leads back to a prompt.

    Opening it makes what is missing and locks it until `close`. Gateways that share a ledger have one key: a new
    directory takes over the one in ``key_file``. Raises OSError saying what is wrong.
    """

    def __init__(self, path: Path, key_file: Path | None = None) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ledger = path / "ledger.sqlite"
        self._descriptor = os.open(path / INSTALLATION_KEY, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.key = self._read_or_make(path, key_file)
        except BlockingIOError as exc:
            self.close()
            raise OSError(f"{path} belongs to a gateway that runs; give each gateway a --state-dir of its own") from exc
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have it. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_or_make(self, path: Path, key_file: Path | None) -> bytes:
        shared = key_file.read_bytes() if key_file is not None else None
        if shared is not None and len(shared) != _KEY_BYTES:
            raise OSError(f"{key_file} is no key of {_KEY_BYTES} bytes; the installation.key of another gateway is one")
        key = os.pread(self._descriptor, _KEY_BYTES + 1, 0)
        if not key:
            key = shared or secrets.token_bytes(_KEY_BYTES)
            os.pwrite(self._descriptor, key, 0)
            os.fsync(self._descriptor)
        if len(key) != _KEY_BYTES:
            raise OSError(f"{path / INSTALLATION_KEY} is no key of {_KEY_BYTES} bytes; remove it to have one made")
        if shared not in (None, key):
            raise OSError(f"{path / INSTALLATION_KEY} is another key than {key_file}; remove it to take that one over")
        return key
