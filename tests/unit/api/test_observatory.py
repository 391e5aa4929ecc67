"""What the observatory's state is put together from."""

from prometheus_client import CollectorRegistry

from app.api.observatory import _sums
from app.determinism.divergence import Verdict
from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.observation.labels import Cause
from app.observation.metrics import Metrics
from app.observation.store import Origin
from app.observation.summary import modes


def test_origins_are_summed_with_a_bound_of_their_own() -> None:
    """The bound over all origins is that of all comparisons, not one of the bounds of the parts."""
    metrics = Metrics(CollectorRegistry())
    metrics.declare("m")
    compared = metrics.of("m", "standard").compared
    compared[Origin.CLIENT].comparisons[Verdict.MATCH].inc(40)
    compared[Origin.CANARY].comparisons[Verdict.MATCH].inc(22)
    compared[Origin.CANARY].comparisons[Verdict.DIVERGED].inc(2)
    compared[Origin.CANARY].divergences[Cause.CO_BATCHED].inc(2)
    (total,) = _sums(modes(metrics))

    assert (total.origin, total.matched, total.diverged) == ("all", 62, 2)
    assert total.upper_bound == clopper_pearson_upper(2, 64)
    assert total.sentence == rate_text(2, 64)
    assert {cause: count for cause, count in total.causes.items() if count} == {"co_batched": 2}
