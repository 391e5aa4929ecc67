"""One program to run, as a value: what ``--dry-run`` prints is what a run starts."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments.

    ``label`` says what it is for while it runs. ``secrets`` are environment variables whose values are never printed
    and never on a command line, where every user of the machine could read them.
    """

    label: str
    argv: tuple[str, ...]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    fallback: "Command | None" = None
    """Run instead when this one fails."""

    def shown(self) -> str:
        """The command as a shell would take it, secrets blanked."""
        hidden = [f"{name}=<secret>" for name in self.secrets]
        return " ".join([*hidden, shlex.join(self.argv)])

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment to run in: ``base`` and the secrets, without what would mix another Python's modules in."""
        kept = {name: value for name, value in base.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
        return kept | dict(self.secrets)
