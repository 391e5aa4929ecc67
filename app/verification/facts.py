"""What the guard tells of the verifier's model, and whether answers can be verified by it at all.

No endpoint of vLLM tells these facts. One that is unknown makes verification unavailable; nothing stands in for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.determinism.posture import LOGPROBS_MODES
from app.errors import DeterminismUnavailable

_NONE_IS_A_FACT: Final = frozenset({"eos", "max_tokens_default", "max_tokens_cap", "reasoning_parser", "tool_parser"})
"""Here null says that there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can verify. Lengths are tokens, ids are token ids.

    ``eos`` is the tokenizer's end token and ``stops`` the other end tokens of the generation config; ``defaults`` are
    the sampling defaults that the model or its operator gives. ``max_tokens_default`` counts where a chat names no
    limit, ``max_tokens_cap`` even where a request names one.
    """

    length: int
    vocabulary: int
    eos: int | None
    stops: frozenset[int]
    defaults: Mapping[str, float]
    max_tokens_default: int | None
    max_tokens_cap: int | None
    reasoning_parser: str | None
    tool_parser: str | None
    harmony: bool
    block_size: int
    prefix_caching: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts as told; None is unknown, but for those that can be none: they are unknown where ``untold`` has them.

    As `Model`, and: ``multimodal``, ``logits_processors`` (custom ones, or a watermark), ``logprobs_mode`` and
    ``speculation`` of the engine.
    """

    length: int | None = None
    vocabulary: int | None = None
    eos: int | None = None
    stops: tuple[int, ...] | None = None
    defaults: Mapping[str, float] | None = None
    max_tokens_default: int | None = None
    max_tokens_cap: int | None = None
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    harmony: bool | None = None
    multimodal: bool | None = None
    logits_processors: bool | None = None
    logprobs_mode: str | None = None
    speculation: bool | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    untold: frozenset[str] = field(default=_NONE_IS_A_FACT, repr=False)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "ModelFacts":
        """The facts in the guard's object; other names are ignored. Raises ValueError naming one of another type."""
        known: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            value = mapping.get(name)
            if value is not None and type(value) is not kind:
                raise ValueError(f"the model's fact {name!r} is no {kind.__name__}")
            known[name] = value
        known["stops"] = _ids(mapping.get("stops"))
        known["defaults"] = _numbers(mapping.get("defaults"))
        return cls(**known, untold=_NONE_IS_A_FACT - mapping.keys())

    def model(self) -> Model:
        """The model, if it can verify. Raises DeterminismUnavailable saying what is unknown or stands against it."""
        unknown = sorted(
            name for name in _NAMES if (name in self.untold if name in _NONE_IS_A_FACT else getattr(self, name) is None)
        )
        if unknown:
            raise _unavailable(f"of its model it is not known: {', '.join(unknown)}")
        if self.logits_processors:
            raise _unavailable("custom logits processors or a watermark change tokens after they are scored")
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise _unavailable(f"with the logprobs mode {self.logprobs_mode} it does not tell logprobs")
        if self.speculation:
            raise _unavailable("it speculates, which shapes its passes by what it guessed")
        if self.multimodal:
            raise _unavailable("its model is multimodal")
        names = Model.__dataclass_fields__
        return Model(**{name: getattr(self, name) for name in names} | {"stops": frozenset(self.stops or ())})


_KINDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("length", "vocabulary", "eos", "max_tokens_default", "max_tokens_cap", "block_size"), int),
    **dict.fromkeys(("reasoning_parser", "tool_parser", "logprobs_mode"), str),
    **dict.fromkeys(("harmony", "multimodal", "logits_processors", "speculation", "prefix_caching"), bool),
}
_NAMES: Final = (*_KINDS, "stops", "defaults")


def _ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        raise ValueError("the model's fact 'stops' is no list of ids")
    return tuple(value)


def _numbers(value: object) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or any(type(one) not in {int, float} for one in value.values()):
        raise ValueError("the model's fact 'defaults' is no object of numbers")
    return dict(value)


def _unavailable(reason: str) -> DeterminismUnavailable:
    return DeterminismUnavailable(f"'verification' is unavailable on this verifier: {reason}.", param="determinism")
