"""The demonstrations by name. Each is imported when it is asked for, so that a list of them needs no NumPy."""

import importlib
from dataclasses import dataclass
from typing import Final

from app.lab.demonstration import Demonstration, NotDemonstrable

_EXTRA: Final = "`pip install 'reprise-gateway[lab]'` brings it"
_TORCH: Final = "run it in the engine's environment: `.venv-engine/bin/reprise lab framework`"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the list: which layer of the four a demonstration shows, and what in a few words.

    ``torch`` says that it needs PyTorch, which lives in the engine's environment; its module imports it inside
    functions, as app/engine does.
    """

    name: str
    layer: str
    summary: str
    torch: bool = False

    def load(self) -> Demonstration:
        """The demonstration. Raises NotDemonstrable where what it computes with is not installed."""
        try:
            if self.torch:
                importlib.import_module("torch")
            module = importlib.import_module(f"app.lab.{self.name}")
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.partition(".")[0] == "app":
                raise  # a fault of ours, not something to install
            raise NotDemonstrable(
                f"{self.name} needs {exc.name}, which is not installed here; {_TORCH if self.torch else _EXTRA}"
            ) from exc
        demonstration: Demonstration = module.DEMONSTRATION
        return demonstration


ENTRIES: Final = (
    Entry("moe", "L1", "expert capacity: who shares your batch decides which expert computes your tokens"),
    Entry("float", "L2", "(a + b) + c is not a + (b + c); number lines, 16 and 8 bits, scaling, fused multiply-add"),
    Entry("reduction", "L2", "one sum in many orders; split by number or by size; the error over the layers"),
    Entry("batch", "L2", "the same row alone and in a batch: a matrix product and RMSNorm on this machine"),
    Entry("allreduce", "L3", "partial sums of several ranks, in order of arrival or along a fixed tree"),
    Entry("framework", "L3", "what PyTorch's determinism switches promise, and what they do not", torch=True),
    Entry("tie", "L4", "two near-equal logits, noise of 1e-7, and the argmax that flips"),
    Entry("butterfly", "L4", "one flipped token, and every token after it"),
    Entry("funnel", "L1-L4", "all four in one simulated decoder, layer by layer on and off"),
)


def find(name: str) -> Entry | None:
    """The entry of that name."""
    return next((entry for entry in ENTRIES if entry.name == name), None)
