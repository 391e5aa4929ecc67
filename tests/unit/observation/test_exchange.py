"""The exchange: what is counted of a request, and as whose."""

import pytest
from prometheus_client import CollectorRegistry

from app.errors import InvalidRequest
from app.observation.exchange import Observatory
from app.observation.metrics import Metrics
from app.observation.recorder import Recorder
from app.observation.store import Origin
from app.receipts.store import Receipts


@pytest.mark.parametrize("origin", [Origin.CANARY, Origin.SHADOW])
def test_what_has_no_plan_is_of_no_mode(origin: Origin) -> None:
    """A canary that was refused before its mode was resolved is none of a mode that it never asked for."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    receipts = Receipts(0, wall=lambda: 0.0)
    observatory = Observatory(metrics, Recorder(metrics), receipts, installation_key=b"k", clock=lambda: 0.0)

    with pytest.raises(InvalidRequest), observatory.exchange("id", origin):
        raise InvalidRequest("no such mode", param="determinism")

    counted = {
        sample.labels["mode"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "reprise_canary_requests_total" and sample.value
    }
    assert counted == {"unknown"}
