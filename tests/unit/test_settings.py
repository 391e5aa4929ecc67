"""Settings: one order of precedence, and errors that name the field and show no secret."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.determinism.mode import REQUESTABLE_MODES, Mode
from app.settings import Settings


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source gives way to the one before it."""
    file = tmp_path / "reprise.toml"
    file.write_text('port = 1\nhost = "file"\nidle_timeout = 7.5\nupstreams = ["http://file:1"]\n')
    monkeypatch.setenv("REPRISE_CONFIG", str(file))
    monkeypatch.setenv("REPRISE_PORT", "2")
    monkeypatch.setenv("REPRISE_HOST", "environment")

    settings = Settings(port=3)

    assert (settings.port, settings.host, settings.idle_timeout) == (3, "environment", 7.5)
    assert settings.connect_timeout == 2.0
    assert [replica.name for replica in settings.replicas] == ["file:1"]


def test_upstreams_of_the_environment_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order and spaces as an operator would write them."""
    monkeypatch.setenv("REPRISE_UPSTREAMS", "http://b:1, http://a:2/v1 ,")
    assert [replica.name for replica in Settings().replicas] == ["b:1", "a:2"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": "x"}, "port"),
        ({"port": 70000}, "port"),
        ({"upstreams": ()}, "at least one upstream"),
        ({"upstreams": ("http://a:1", "http://a:1/v1")}, "named twice"),
        ({"upstreams": ("a:1",)}, "upstream must be"),
        ({"default_mode": "strict"}, "default_mode"),
        ({"default_mode": "custom"}, "cannot be the default mode"),
        ({"tiny_temperature": 0}, "tiny_temperature"),
        ({"tiny_temperature": 0.5}, "tiny_temperature"),
        ({"upstream_api_key": "k", "upstream_api_key_file": "f"}, "exclude each other"),
    ],
)
def test_a_bad_setting_is_named(given: dict[str, Any], words: str) -> None:
    """The error says which setting is wrong."""
    with pytest.raises(ValidationError, match=words):
        Settings(**given)


@pytest.mark.parametrize("given", [{"default_mode": "isolatd"}, {"canary_modes": "standard,Isolated"}])
def test_a_wrong_mode_names_those_that_can_be_asked_for(given: dict[str, Any]) -> None:
    """What a request may name, the likeliest of it last, and never the name that only reports have."""
    with pytest.raises(ValidationError, match=r"modes are standard, seeded.*did you mean 'isolated'") as caught:
        Settings(**given)
    assert "custom" not in str(caught.value)


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the settings' own text nor in an error."""
    monkeypatch.setenv("REPRISE_GUARD_KEY", "very-secret")
    assert "very-secret" not in repr(Settings())
    with pytest.raises(ValidationError) as caught:
        Settings(port="x", upstream_api_key="very-secret", upstream_api_key_file=Path("f"))
    assert "very-secret" not in str(caught.value)


def test_the_engines_key_from_a_file(tmp_path: Path) -> None:
    """A mounted secret, with the line end that files have."""
    file = tmp_path / "key"
    file.write_text("from-file\n")
    assert Settings(upstream_api_key_file=file).read_upstream_api_key() == "from-file"
    assert Settings().read_upstream_api_key() is None
    assert Settings(default_mode=Mode.ISOLATED).default_mode is Mode.ISOLATED


def test_canaries_may_be_asked_in_any_mode_that_a_caller_may() -> None:
    """A mode that this gateway cannot serve yet among them: its canaries are refused, and counted as such."""
    assert set(Settings(canary_modes=REQUESTABLE_MODES).canary_modes) == set(REQUESTABLE_MODES)
    with pytest.raises(ValidationError, match="'custom' is no mode to ask for"):
        Settings(canary_modes=(Mode.CUSTOM,))
