"""What the probe asks when it is given nothing to ask."""

from typing import Final

BUILT_IN: Final = (
    "Describe the city of the future in detail.",
    "Write a speech for the opening of a library.",
    "Write a long story about a dragon and a clock maker.",
    "Write a poem about winter in ten lines.",
)
"""Open tasks that keep a small model writing. SmolLM2-135M-Instruct in bfloat16 comes to a near-tie between two tokens
within the first dozen of each answer, so a batch that changes the last bit of a logit changes the text."""

_LOAD_SUBJECTS: Final = ("rivers", "clocks", "bridges", "music", "maps", "gardens", "glass")
_LOAD_TOKENS: Final = (8, 40, 16, 48, 24, 12, 32, 20)
_LOAD_WORDS: Final = 5


def load_prompt(worker: int, step: int) -> str:
    """The prompt of a background request.

    Never the same twice in a run, so that it is nobody's repeat, and of varying length, so that what shares a batch
    with a probed request keeps changing.
    """
    subjects = (
        _LOAD_SUBJECTS[(worker + step * 3 + place) % len(_LOAD_SUBJECTS)]
        for place in range(1 + (worker + step) % _LOAD_WORDS)
    )
    return f"Note {worker}-{step}: tell me something about {', '.join(subjects)}."


def load_tokens(worker: int, step: int) -> int:
    """How many tokens that background request asks for."""
    return _LOAD_TOKENS[(worker + 3 * step) % len(_LOAD_TOKENS)]
