"""The state directory: one gateway at a time, a key that stays, and nothing for others to read."""

from pathlib import Path

import pytest

from app.state import StateDirectory


def test_the_key_is_made_once_and_stays(tmp_path: Path) -> None:
    """Every start finds the same key, in a private file of a private directory."""
    path = tmp_path / "a" / "b"
    first = StateDirectory(path)
    key = first.key
    first.close()
    first.close()
    again = StateDirectory(path)

    assert again.key == key
    assert len(key) == 32
    assert path.stat().st_mode & 0o077 == 0
    assert (path / "installation.key").stat().st_mode & 0o077 == 0
    again.close()


def test_one_gateway_at_a_time(tmp_path: Path) -> None:
    """A second one is told so, and may have it when the first is done."""
    first = StateDirectory(tmp_path)
    with pytest.raises(OSError, match="belongs to a gateway that runs"):
        StateDirectory(tmp_path)
    first.close()
    StateDirectory(tmp_path).close()


def test_what_is_no_key_is_not_overwritten(tmp_path: Path) -> None:
    """A file of another length is somebody's; the error says what to do."""
    (tmp_path / "installation.key").write_bytes(b"mine")
    with pytest.raises(OSError, match="remove it"):
        StateDirectory(tmp_path)
    assert (tmp_path / "installation.key").read_bytes() == b"mine"
