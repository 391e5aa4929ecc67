"""Where everything lies in a checkout. Nothing is written outside it."""

from dataclasses import dataclass
from pathlib import Path

BUNDLED_MODEL = "SmolLM2-135M-Instruct"
BUNDLED_NAME = "smollm2"  # what the engine calls it


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one checkout; ``root`` is absolute."""

    root: Path

    @property
    def gateway_environment(self) -> Path:
        """The gateway's virtual environment, and its development's."""
        return self.root / ".venv"

    @property
    def engine_environment(self) -> Path:
        """The engine's virtual environment: vLLM pins what the gateway must not be bound to."""
        return self.root / ".venv-engine"

    @property
    def bundled_model(self) -> Path:
        """The model folder that the first run makes."""
        return self.root / ".models" / BUNDLED_MODEL

    @property
    def state(self) -> Path:
        """What runs leave behind: logs and the lock that keeps two installations apart."""
        return self.root / ".reprise"

    def log(self, name: str) -> Path:
        """The log file of one program; the next run overwrites it."""
        return self.state / "logs" / f"{name}.log"

    def shown(self, path: Path) -> str:
        """``path`` as a person in the checkout would type it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def find() -> Layout:
    """The checkout that this file belongs to."""
    return Layout(Path(__file__).resolve().parents[2])
