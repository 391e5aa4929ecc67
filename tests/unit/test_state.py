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


def test_a_new_directory_takes_over_the_shared_key(tmp_path: Path) -> None:
    """Gateways that share a ledger find equal requests under equal keys; the first start alone needs the file."""
    first = StateDirectory(tmp_path / "a")
    second = StateDirectory(tmp_path / "b", tmp_path / "a" / "installation.key")
    assert second.key == first.key
    second.close()
    again = StateDirectory(tmp_path / "b")
    assert again.key == first.key
    again.close()
    first.close()


def test_a_shared_key_replaces_no_other(tmp_path: Path) -> None:
    """A directory that has a key of its own keeps it; the error says what to do, and the lock is let go."""
    StateDirectory(tmp_path / "a").close()
    (tmp_path / "shared").write_bytes(bytes(32))
    with pytest.raises(OSError, match=r"is another key than .*remove it"):
        StateDirectory(tmp_path / "a", tmp_path / "shared")
    StateDirectory(tmp_path / "a").close()


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_shared_key_has_32_bytes(tmp_path: Path, content: bytes) -> None:
    """Anything else is an error that names the file, and no key is made."""
    (tmp_path / "shared").write_bytes(content)
    with pytest.raises(OSError, match="shared is no key of 32 bytes"):
        StateDirectory(tmp_path / "a", tmp_path / "shared")
    assert (tmp_path / "a" / "installation.key").read_bytes() == b""
