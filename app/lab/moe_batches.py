"""One request alone and among others: what happened to its tokens, batch after batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.lab.moe_experts import Layer, Request, outputs
from app.lab.moe_routing import Routing, capacity, route

PHASES: Final = ("decode", "prefill")
"""A step of decoding has one token of each request in it, a prefill all tokens of all of them, request by request."""


class Rules(NamedTuple):
    """How a batch is routed: the capacity factor, None for unlimited room, and one each of PHASES and OVERFLOWS."""

    top_k: int
    factor: float | None
    phase: str
    overflow: str

    def route(self, requests: Sequence[Request]) -> Routing:
        """Who computes what of these requests; they have equally many tokens. ``(requests, tokens, top_k)``."""
        ranked = np.stack([request.ranked for request in requests])
        count, tokens, experts = ranked.shape
        room = self.room(count, tokens, experts)
        if self.phase == "prefill":
            whole = route(ranked.reshape(-1, experts), self.top_k, room, self.overflow)
            return Routing(whole.assigned.reshape(count, tokens, self.top_k), whole.overflowed)
        steps = [route(ranked[:, step], self.top_k, room, self.overflow) for step in range(tokens)]
        assigned = np.stack([step.assigned for step in steps], axis=1)
        return Routing(assigned, sum(step.overflowed for step in steps))

    def room(self, requests: int, tokens: int, experts: int) -> int | None:
        """The capacity per expert, in choices, of one batch of so many requests of so many tokens."""
        if self.factor is None:
            return None
        return capacity(requests * (tokens if self.phase == "prefill" else 1), experts, self.top_k, self.factor)


class Batch(NamedTuple):
    """The neighbours of a request and its place among them, from 0 (admitted first) to ``len(neighbours)``."""

    watched: Request
    neighbours: tuple[Request, ...]
    place: int

    @property
    def requests(self) -> tuple[Request, ...]:
        """All of them, in the order in which they are admitted."""
        return (*self.neighbours[: self.place], self.watched, *self.neighbours[self.place :])


@dataclass(frozen=True, slots=True)
class Seen:
    """The watched request under one routing: the experts of its tokens ``(tokens, top_k)`` and its outputs.

    ``outputs`` is ``(tokens, hidden)``, ``argmax`` the tokens that the unembedding makes of them; ``overflowed`` counts
    choices of the whole batch.
    """

    experts: NDArray[np.intp]
    outputs: NDArray[np.float32]
    argmax: tuple[int, ...]
    overflowed: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch compared with the request alone. ``changes`` are absolute differences, ``(tokens, hidden)``."""

    seen: Seen
    moved: NDArray[np.bool_]
    changes: NDArray[np.float32]
    argmax_changed: int

    @property
    def largest(self) -> float:
        """The largest change of a number of the output."""
        return float(np.max(self.changes))

    @property
    def mean(self) -> float:
        """The mean over all numbers of the output, those of unmoved tokens among them."""
        return float(np.mean(self.changes, dtype=np.float64))


def draw_batches(
    random: np.random.Generator, layer: Layer, watched: Request, neighbours: int, place: int, trials: int
) -> tuple[Batch, ...]:
    """Batches of one shape and with the request at one place; only what the neighbours say is another each time."""
    tokens, top_k = watched.weights.shape
    return tuple(
        Batch(watched, tuple(Request.drawn(random, layer, tokens, top_k) for _ in range(neighbours)), place)
        for _ in range(trials)
    )


def watch(layer: Layer, batch: Batch, rules: Rules) -> Seen:
    """Route the whole batch and compute the watched request's part of it."""
    routing = rules.route(batch.requests)
    experts = routing.assigned[batch.place]
    found = outputs(layer, batch.watched, experts)
    return Seen(experts, found, tuple(map(layer.token, found)), routing.overflowed)


def compare(alone: Seen, seen: Seen) -> Trial:
    """What the batch did to the request: a token moved if any of its choices was computed by another expert."""
    changed = sum(one != other for one, other in zip(alone.argmax, seen.argmax, strict=True))
    moved = np.any(alone.experts != seen.experts, axis=1)
    return Trial(seen, moved, np.abs(seen.outputs - alone.outputs), changed)


def whole_batch(layer: Layer, batch: Batch, rules: Rules) -> bytes:
    """The bits of the outputs of every request of the batch."""
    parts = zip(batch.requests, rules.route(batch.requests).assigned, strict=True)
    return b"".join(outputs(layer, request, experts).tobytes() for request, experts in parts)


class Crowding(NamedTuple):
    """Over some batches: the share of the watched request's tokens that moved, and of all choices that overflowed.

    ``factor`` is the capacity factor and ``room`` the capacity per expert, None where it is unlimited.
    """

    factor: float | None
    room: int | None
    moved_share: float
    overflowed_share: float


def crowding(batches: Sequence[Batch], rules: Rules) -> Crowding:
    """Routing alone, no outputs. Raises ValueError without batches."""
    watched = batches[0].watched
    alone = rules.route([watched]).assigned[0]
    routings = [rules.route(batch.requests) for batch in batches]
    moved = [
        np.any(routing.assigned[batch.place] != alone, axis=1) for batch, routing in zip(batches, routings, strict=True)
    ]
    choices = sum(routing.assigned.size for routing in routings)
    overflowed = sum(routing.overflowed for routing in routings)
    room = rules.room(len(batches[0].requests), *watched.ranked.shape)
    return Crowding(rules.factor, room, float(np.mean(moved)), overflowed / choices)
