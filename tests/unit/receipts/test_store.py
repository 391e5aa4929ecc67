"""The store: the last requests by id, no more than it was told to keep, and nothing large of any of them."""

from itertools import count

from app.determinism.mode import Mode
from app.determinism.plan import Plan
from app.receipts.store import Receipts
from tests.unit.receipts.made import finished


def store(limit: int) -> Receipts:
    seconds = count(100)
    return Receipts(limit, wall=lambda: float(next(seconds)))


def test_a_request_is_found_with_the_time_of_its_end() -> None:
    """What was put is what is got, with the wall time of the put."""
    receipts = store(2)
    first, second = finished(request_id="a"), finished(request_id="b")
    receipts.put(first)
    receipts.put(second)

    assert receipts.get("a") == (100.0, first)
    assert receipts.get("b") == (101.0, second)
    assert receipts.get("c") is None


def test_the_oldest_goes_first() -> None:
    """Over the limit the one that finished first is forgotten, however often it was asked for."""
    receipts = store(3)
    for number in range(10):
        receipts.put(finished(request_id=str(number)))
        receipts.get("0")
        assert len(receipts) == min(number + 1, 3)
        newest = range(max(0, number - 2), number + 1)
        assert [one for one in range(10) if receipts.get(str(one)) is not None] == list(newest)


def test_a_limit_of_0_keeps_nothing() -> None:
    """An operator can turn receipts off."""
    receipts = store(0)
    receipts.put(finished(request_id="a"))
    assert len(receipts) == 0
    assert receipts.get("a") is None


def test_a_very_long_model_name_does_not_stay() -> None:
    """A caller's megabytes are not kept; the rest of the request is."""
    receipts = store(1)
    plan = Plan(Mode.ISOLATED, "m" * 1_000_000)
    receipts.put(finished(request_id="a", plan=plan))

    found = receipts.get("a")
    assert found is not None
    assert found.finished.plan.model == "m" * 256 + "..."
    assert found.finished._replace(plan=plan) == finished(request_id="a", plan=plan)
