"""The gateway's settings: flags over environment (``REPRISE_*``) over a TOML file over defaults."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.determinism.evidence import Evidence
from app.determinism.mode import REQUESTABLE_MODES, Mode, did_you_mean
from app.determinism.plan import DEFAULT_WINDOW, MOST_WINDOW
from app.observation.store import Retention
from app.scheduling.gate import GatePolicy
from app.scheduling.scheduler import Queueing
from app.upstream.replica import Replica


class Settings(BaseSettings):
    """Every setting with its default. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="REPRISE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    config: Path | None = Field(None, description="A TOML file with any of these settings.")
    host: str = Field("127.0.0.1", description="The address that the gateway listens on.")
    port: int = Field(8000, ge=0, le=65535, description="The port that the gateway listens on.")
    upstreams: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8001",), description="Base URLs of the vLLM replicas; comma-separated in the environment."
    )
    default_mode: Mode = Field(Mode.STANDARD, description="The mode of requests that name none.")
    window: int = Field(
        DEFAULT_WINDOW, ge=1, le=MOST_WINDOW, description="Tokens of a window of `verified` answers that name none."
    )
    max_window: int = Field(
        1024, ge=1, le=MOST_WINDOW, description="The longest window that a `verified` request may name, in tokens."
    )
    tiny_temperature: float = Field(1e-5, gt=0, le=0.01, description="What `tiny_temperature` sends instead of 0.")
    guard_key: SecretStr | None = Field(None, description="The key that replicas' guards share with their gateways.")
    upstream_api_key: SecretStr | None = Field(
        None, description="The engines' API key. Set, it replaces the caller's Authorization header."
    )
    upstream_api_key_file: Path | None = Field(None, description="A file that holds the engines' API key.")
    state_dir: Path = Field(Path(".reprise"), description="Where the ledger and the installation key live.")
    installation_key_file: Path | None = Field(
        None, description="The installation key for a new state directory; gateways that share a ledger need one key."
    )
    recording: bool = Field(default=True, description="Look at answers: digests, verdicts, the ledger.")
    ledger: bool = Field(
        default=True, description="Keep cohorts in SQLite under the state directory; off: in memory only."
    )
    ledger_queue: int = Field(
        10_000, ge=1, description="Observations that may wait for the ledger before some are dropped."
    )
    ledger_cohorts: int = Field(100_000, ge=1, description="Cohorts in the ledger; the longest unseen go first.")
    ledger_bytes: int = Field(2**30, ge=2**20, description="Bytes that the ledger may take.")
    ledger_seconds: float = Field(
        30 * 86_400.0, gt=0, description="How long the ledger keeps a cohort after it was last seen."
    )
    ledger_run_answers: int = Field(
        1_000_000, ge=1, description="Answers of labelled runs in the ledger; the oldest go first."
    )
    ledger_url: SecretStr | None = Field(
        None,
        description="A Redis (6.2 or later, no cluster) for the ledger, in place of SQLite: redis://[:password@]host[:port][/number].",
    )
    keep_texts: bool = Field(default=False, description="Keep the texts of answers in the ledger, not digests alone.")
    text_bytes: int = Field(64 * 1024, ge=1, description="The most that is kept of one answer's text.")
    redactor: str = Field(
        "app.observation.texts:mask_secrets", description="A Python function that takes a text to what may be kept."
    )
    evidence: Evidence = Field(
        Evidence.LOGPROBS,
        description="What deterministic modes, canaries and shadows also ask for: tokens, logprobs or none.",
    )
    semantic: bool = Field(default=False, description="Compare diverged answers by embeddings too; needs the extra.")
    canary_interval: float = Field(0.0, ge=0, allow_inf_nan=False, description="Between two canaries; 0 sends none.")
    canary_modes: Annotated[tuple[Mode, ...], NoDecode] = Field(
        (Mode.STANDARD, Mode.SEEDED, Mode.ISOLATED), description="The modes in which canaries are sent."
    )
    canaries: Path | None = Field(None, description="A file of canaries, one JSON object per line.")
    shadow_rate: float = Field(
        0.0, ge=0, le=1, description="The share of repeatable standard and seeded requests that are asked once more."
    )
    observatory_key: SecretStr | None = Field(
        None, description="The key to /observatory. Without one the page is shown on a loopback address only."
    )
    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1, description="The largest request body.")
    max_answer_bytes: int = Field(64 * 1024 * 1024, ge=1, description="The largest answer that is not a stream.")
    body_timeout: float = Field(60.0, gt=0, description="How long a request body may take to arrive.")
    connect_timeout: float = Field(2.0, gt=0, description="How long a replica may take to accept a connection.")
    first_byte_timeout: float = Field(
        900.0, gt=0, description="How long a replica may take to send an answer's headers, its queue included."
    )
    draft_timeout: float = Field(
        120.0,
        gt=0,
        allow_inf_nan=False,
        description="How long a draft may take, its queue included, before a pass goes on without it.",
    )
    idle_timeout: float = Field(300.0, gt=0, description="How long an answer may be silent between two pieces.")
    write_timeout: float = Field(60.0, gt=0, description="How long a client may take nothing of its answer.")
    drain_timeout: float = Field(
        30.0, gt=0, description="How long an exclusive request waits for a replica without the guard to run empty."
    )
    exclusive_share: float = Field(
        0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="The most of contended time that exclusive requests get on a replica that never falls empty.",
    )
    exclusive_phase_seconds: float = Field(
        10.0, ge=0, allow_inf_nan=False, description="An exclusive phase this long gives way to shared requests."
    )
    exclusive_key_seconds: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Exclusive seconds after which a caller lets the others go first."
    )
    exclusive_spill_seconds: float = Field(
        5.0, ge=0, description="An expected wait above this sends exclusive requests to another replica of the pool."
    )
    queue_shared: int = Field(10_000, ge=0, description="Shared requests that may wait for a replica.")
    queue_exclusive: int = Field(1_000, ge=0, description="Exclusive requests that may wait for a replica.")
    queue_timeout: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="How long a request may wait for its turn on a replica."
    )
    probe_interval: float = Field(5.0, gt=0, description="Between two probes of a replica.")
    probe_timeout: float = Field(5.0, gt=0, description="How long a replica may take to answer a probe.")
    probe_failures: int = Field(3, ge=1, description="Consecutive failed probes that take a replica out.")
    probe_successes: int = Field(2, ge=1, description="Consecutive good probes that bring it back.")
    receipts: int = Field(4096, ge=0, description="Finished requests whose receipts can be asked for; 0 keeps none.")
    shutdown_delay: float = Field(
        5.0, ge=0, allow_inf_nan=False, description="After SIGTERM: how long it serves on with readiness turned off."
    )
    shutdown_grace: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="After that: how long answers under way have to finish."
    )
    stream_comment: bool = Field(
        default=True, description="End streams with one SSE comment line that carries the determinism facts."
    )

    @field_validator("config")
    @classmethod
    def _exists(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        if not value.is_file():
            raise ValueError(f"there is no such file: {value}")
        unknown = tomllib.loads(value.read_text()).keys() - cls.model_fields
        if unknown:
            raise ValueError(f"unknown settings in {value}: {', '.join(sorted(unknown))}")
        return value

    @field_validator("upstreams", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("canary_modes", mode="before")
    @classmethod
    def _split_modes(cls, value: object) -> object:
        names = tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
        for name in names if isinstance(names, list | tuple) else ():
            if isinstance(name, str) and name not in REQUESTABLE_MODES:
                raise ValueError(_no_mode(name, "is no mode to ask for", REQUESTABLE_MODES))
        return names

    @field_validator("upstreams")
    @classmethod
    def _are_replicas(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [Replica.at(url).name for url in value]
        if not names:
            raise ValueError("at least one upstream is needed")
        if len(set(names)) < len(names):
            raise ValueError(f"an upstream is named twice: {', '.join(names)}")
        return value

    @field_validator("default_mode", mode="before")
    @classmethod
    def _is_available(cls, value: object) -> object:
        if isinstance(value, str) and value not in REQUESTABLE_MODES:
            raise ValueError(_no_mode(value, "cannot be the default mode", REQUESTABLE_MODES))
        return value

    @model_validator(mode="after")
    def _one_api_key(self) -> Self:
        if self.upstream_api_key is not None and self.upstream_api_key_file is not None:
            raise ValueError("upstream_api_key and upstream_api_key_file exclude each other")
        return self

    @model_validator(mode="after")
    def _window_in_bounds(self) -> Self:
        if self.window > self.max_window:
            raise ValueError(f"window is {self.window}, and max_window {self.max_window}")
        return self

    @property
    def gate_policy(self) -> GatePolicy:
        """How the gates of replicas without the guard share them."""
        return GatePolicy(
            self.exclusive_share,
            self.exclusive_phase_seconds,
            self.exclusive_key_seconds,
            self.queue_shared,
            self.queue_exclusive,
        )

    @property
    def queueing(self) -> Queueing:
        """How requests wait."""
        return Queueing(self.queue_timeout, self.exclusive_spill_seconds, self.drain_timeout)

    @property
    def retention(self) -> Retention:
        """What the ledger keeps."""
        return Retention(self.ledger_cohorts, self.ledger_bytes, self.ledger_seconds, self.ledger_run_answers)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The upstreams as values."""
        return tuple(Replica.at(url) for url in self.upstreams)

    def read_upstream_api_key(self) -> str | None:
        """The engines' key, from the environment or its file. Raises OSError where the file cannot be read."""
        if self.upstream_api_key_file is not None:
            return self.upstream_api_key_file.read_text().strip() or None
        return self._secret(self.upstream_api_key)

    def read_guard_key(self) -> str | None:
        """The guards' key; an empty variable is none."""
        return self._secret(self.guard_key)

    def read_ledger_url(self) -> str | None:
        """The URL of the ledger's Redis; an empty variable is none."""
        return self._secret(self.ledger_url)

    def read_observatory_key(self) -> str | None:
        """The observatory's key; an empty variable is none."""
        return self._secret(self.observatory_key)

    @staticmethod
    def _secret(value: SecretStr | None) -> str | None:
        return (value.get_secret_value() or None) if value is not None else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'; .env is not read
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then secret files, then the TOML file."""
        named = {**env_settings(), **init_settings()}.get("config")
        return (
            init_settings,
            env_settings,
            file_secret_settings,
            TomlConfigSettingsSource(settings_cls, Path(str(named)) if named else None),
        )


def _no_mode(name: str, problem: str, modes: Sequence[Mode]) -> str:
    return f"'{name[:40]}' {problem}; modes are {', '.join(modes)}{did_you_mean(name)}"
