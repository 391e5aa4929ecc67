"""``reprise lab butterfly``: one flipped token, and what becomes of every token after it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.lab.butterfly_agreement import BLOCK, Agreement, agreement
from app.lab.butterfly_chain import Chain
from app.lab.demonstration import Demonstration, NotDemonstrable, Result, Sheet
from app.probe.arguments import integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXPLANATION: Final = """
Each token that a model generates becomes part of what it sees. Where a near tie flips one token, everything after it is
conditioned on another text: the last bits of one number have become another answer (layer L4). Until the flip the two
answers are equal, so the position of the first difference says little about how much differs after it.

Below, a small Markov model decodes many prompts greedily, twice: as it is, and with its second choice taken at one
position. Its memory is the last few tokens. With many states, as in a language model, the two texts hardly ever meet
again. With few states the second soon comes into a state that the first was in, either in step (the same tokens at the
same positions from then on) or out of step: the same text, shifted. Agreement by position (verbatim) counts a shifted
text as different, edit similarity (fuzzy) does not, which is why both are measured.
"""

_CONTRASTS: Final = ((2, 50), (1, 16))
"""Order and vocabulary of models with fewer and with few states."""

_NEAR_TIE: Final = 0.03125
"""One step of bfloat16 from 4 to 8, where the largest logits of this model lie."""

_WRITTEN_OUT: Final = 10**10
_BEFORE: Final = 2
_AFTER: Final = 10
_STYLES: Final = (("-", "o"), ("--", "s"), (":", "^"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--order",
        type=integer(1, 8),
        default=2,
        metavar="N",
        help="tokens that the model remembers (default %(default)s)",
    )
    parser.add_argument(
        "--vocabulary",
        type=integer(2, 50_000),
        default=1000,
        metavar="N",
        help="tokens that it knows (default %(default)s)",
    )
    parser.add_argument(
        "--tokens", type=integer(32, 2048), default=128, metavar="N", help="tokens per answer (default %(default)s)"
    )
    parser.add_argument(
        "--flip-at",
        type=integer(0, 2047),
        default=16,
        metavar="P",
        help="position of the flipped token, the first being 0 (default %(default)s)",
    )
    parser.add_argument(
        "--prompts", type=integer(2, 2000), default=200, metavar="N", help="prompts decoded (default %(default)s)"
    )


def _run(options: argparse.Namespace) -> Result:
    if options.tokens - options.flip_at - 1 < BLOCK:
        raise NotDemonstrable(
            f"--flip-at {options.flip_at} leaves fewer than {BLOCK} of the --tokens {options.tokens} after it"
        )
    models = dict.fromkeys([(options.order, options.vocabulary), *_CONTRASTS])
    seen = [
        agreement(Chain(order, vocabulary, options.seed), options.prompts, options.tokens, options.flip_at)
        for order, vocabulary in models
    ]
    return Result(
        sheets=(_sheet(seen, options), _example(seen)),
        findings=tuple(_findings(seen)),
        data={"flip_at": options.flip_at, "models": [_data(one) for one in seen]},
        draw=lambda figure: _draw(figure, seen),
    )


def _name(one: Agreement) -> str:
    return f"order {one.chain.order}, {one.chain.vocabulary:,} tokens"


def _sheet(seen: Sequence[Agreement], options: argparse.Namespace) -> Sheet:
    columns = ("model", "verbatim", "by chance", "fuzzy", "by chance", "in step", "out of step", "apart")
    rows = tuple(
        (
            _name(one),
            f"{one.rest_verbatim:.3f}",
            f"{one.unrelated_verbatim:.3f}",
            f"{one.rest_fuzzy:.3f}",
            f"{one.unrelated_fuzzy:.3f}",
            *map(str, one.counts),
        )
        for one in seen
    )
    title = f"Agreement after a flip at {options.flip_at}, {options.tokens} tokens each, {options.prompts} prompts"
    return Sheet(title, columns, rows)


def _example(seen: Sequence[Agreement]) -> Sheet:
    """The tokens around the flip, by the first model and by the last: of a pair apart, and of one out of step."""
    shown = [(one, one.fates.index(fate) if fate in one.fates else 0) for one, fate in ((seen[0], 2), (seen[-1], 1))]
    columns = ["position"]
    for one, _ in shown:
        columns += [f"{_name(one)}: plain", "flipped"]
    flip_at = seen[0].flip_at
    last = min(flip_at + _AFTER, seen[0].plain.tokens.shape[1] - 1)
    rows = []
    for position in range(max(0, flip_at - _BEFORE), last + 1):
        row = [f"{position} (flip)" if position == flip_at else str(position)]
        for one, prompt in shown:
            plain, other = one.plain.tokens[prompt, position], one.flipped.tokens[prompt, position]
            row += [str(plain), "same" if plain == other else str(other)]
        rows.append(tuple(row))
    title = "Token ids around the flip, for one prompt of the first model and one of the last"
    return Sheet(title, tuple(columns), tuple(rows))


def _findings(seen: Sequence[Agreement]) -> list[str]:
    return [_flip_said(seen[0]), *map(_said, seen), *_shift_said(seen[-1])]


def _flip_said(one: Agreement) -> str:
    margins = one.plain.margins
    near = float(np.mean(np.sum(margins < _NEAR_TIE, axis=1)))
    forks = np.argmax(one.plain.tokens != one.flipped.tokens, axis=1)
    return (
        f"The first difference is at {one.flip_at} in {int(np.sum(forks == one.flip_at))} of {len(forks)} pairs. The "
        f"token taken there was {float(np.mean(margins[:, one.flip_at])):.2g} logits behind on average. An answer has "
        f"{near:.2g} near ties (closer than {_NEAR_TIE:g}), and each could be such a flip."
    )


def _said(one: Agreement) -> str:
    states = f"{one.chain.contexts:,}" if one.chain.contexts < _WRITTEN_OUT else f"{one.chain.contexts:.1e}"
    met = one.counts.in_step + one.counts.out_of_step
    return (
        f"{_name(one)} ({states} states): after the flip {100 * one.rest_verbatim:.2g} % of the positions agree "
        f"(by chance {100 * one.unrelated_verbatim:.2g} %); {met} of {len(one.fates)} pairs meet again, "
        f"{one.counts.in_step} of them in step."
    )


def _shift_said(one: Agreement) -> list[str]:
    shifted = one.counts.out_of_step
    if not shifted or one.rest_fuzzy <= one.rest_verbatim:
        return []
    sentence = (
        f"{_name(one)}: {shifted} of {len(one.fates)} answers run on as the same text, shifted, and fuzzy agreement is "
        f"{one.rest_fuzzy:.2f} where verbatim agreement is {one.rest_verbatim:.2f}."
    )
    return [sentence]


def _data(one: Agreement) -> dict[str, Any]:
    return {
        "order": one.chain.order,
        "vocabulary": one.chain.vocabulary,
        "states": float(one.chain.contexts),
        "verbatim_share_by_position": one.verbatim.tolist(),
        "fuzzy_similarity_by_block": one.fuzzy.tolist(),
        "block_tokens": BLOCK,
        "block_positions": list(one.blocks),
        "rest_verbatim_share": one.rest_verbatim,
        "rest_fuzzy_similarity": one.rest_fuzzy,
        "unrelated_verbatim_share": one.unrelated_verbatim,
        "unrelated_fuzzy_similarity": one.unrelated_fuzzy,
        "pairs": one.counts._asdict(),
        "margin_at_flip_mean_logits": float(np.mean(one.plain.margins[:, one.flip_at])),
    }


def _draw(figure: "Figure", seen: Sequence[Agreement]) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    for one, (line, mark) in zip(seen, _STYLES, strict=False):
        positions = np.arange(len(one.verbatim))
        upper.plot(positions, one.verbatim, line, color="black", label=_name(one), drawstyle="steps-mid")
        centres = np.array(one.blocks) + BLOCK / 2
        lower.plot(centres, one.fuzzy, line, marker=mark, color="black", mfc="none", label=_name(one))
    for axes in (upper, lower):
        axes.axvline(seen[0].flip_at, color="0.6", linewidth=4, alpha=0.5, label="flipped token")
        axes.set_ylim(-0.03, 1.05)
    upper.legend(loc="upper right", fontsize="small")  # the lower axes have the same lines
    upper.set_ylabel("same token there\n(share of prompts)")
    upper.set_title("Verbatim: agreement by position")
    lower.set_ylabel("edit similarity\n(mean over prompts)")
    lower.set_title(f"Fuzzy: agreement of the {BLOCK} tokens around a position")
    lower.set_xlabel("position (tokens)")


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
