"""How near two diverged outputs are in meaning, by embeddings. Advice, and never a verdict.

Embeddings of this size cannot be trusted with a decision: "approved" and "not approved" lie closer together than many
a harmless paraphrase. So nothing here turns a divergence into a match; it sorts divergences for a reader.

The model is WordLlama's, the one that comes whole in its package. It is imported when it is asked for and not before:
it is an extra, and it brings numpy.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from app.determinism.output import Output

LONGEST: Final = 16_384
"""Characters of each side that are embedded; they cost some 20 ms."""

_MISSING: Final = "semantic comparison needs the extra: pip install 'reprise-gateway[semantic]'"


class SemanticUnavailable(Exception):
    """The embedding model cannot be loaded; the message says what to do."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, all of one length; a text without a word gives zeros."""


class WordLlamaEmbedder:
    """The bundled model: 256 numbers per text. ``model`` is a loaded `wordllama.WordLlamaInference`."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - the package has no types
        self._model = model

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """As `Embedder`. A lone half of a surrogate pair becomes a question mark: the tokenizer refuses it."""
        vectors: list[list[float]] = self._model.embed([text.encode(errors="replace").decode() for text in texts])
        return [[float(number) for number in vector] for vector in vectors]


def load_embedder() -> WordLlamaEmbedder:
    """The model from its package, without the network. Raises SemanticUnavailable."""
    try:
        package = import_module("wordllama")
        # By default it looks into a folder that its own wheel calls otherwise, and then asks a hub.
        folder = Path(str(package.__file__)).parent
        return WordLlamaEmbedder(package.WordLlama.load(cache_dir=folder, disable_download=True))
    except ImportError as exc:
        raise SemanticUnavailable(_MISSING) from exc
    except (OSError, ValueError, AttributeError) as exc:
        raise SemanticUnavailable(f"the embedding model cannot be loaded: {exc}") from exc


def semantic_similarity(left: Output, right: Output, embedder: Embedder) -> float | None:
    """The cosine of the embeddings of two outputs, -1 to 1, averaged over the choices.

    Of the first 16,384 characters of each; None where the two have different choices, or a side has no word.
    """
    pairs = list(zip(left.choices, right.choices, strict=False))
    if not pairs or len(left.choices) != len(right.choices):
        return None
    texts = [side.flow[:LONGEST] for pair in pairs for side in pair]
    vectors = embedder.embed(texts)
    cosines = [_cosine(*both) for both in zip(vectors[::2], vectors[1::2], strict=True)]
    known = [cosine for cosine in cosines if cosine is not None]
    return sum(known) / len(known) if len(known) == len(cosines) else None


def _cosine(left: Sequence[float], right: Sequence[float]) -> float | None:
    lengths = sum(x * x for x in left) * sum(x * x for x in right)
    if not lengths > 0.0:
        return None
    # Rounding may carry it a little beyond the ends.
    return float(max(-1.0, min(1.0, sum(x * y for x, y in zip(left, right, strict=True)) / lengths**0.5)))
