"""The plain FIFO lock that the gate is compared with."""

from app.scheduling.ticket import Admission
from app.simulation.fifo import FifoLock

SHARED, EXCLUSIVE = Admission.SHARED, Admission.EXCLUSIVE


def test_tickets_are_granted_strictly_in_order() -> None:
    """A shared ticket behind an exclusive one waits for it, although others of its class run."""
    lock = FifoLock()
    granted: list[str] = []
    first = lock.enqueue(SHARED, lambda: granted.append("first"))
    alone = lock.enqueue(EXCLUSIVE, lambda: granted.append("alone"))
    second = lock.enqueue(SHARED, lambda: granted.append("second"))
    again = lock.enqueue(EXCLUSIVE, lambda: granted.append("again"))

    assert granted == ["first"]
    lock.release(first)
    assert granted == ["first", "alone"]
    lock.release(alone)
    assert granted == ["first", "alone", "second"]
    lock.release(second)
    assert granted == ["first", "alone", "second", "again"]
    assert again.granted


def test_shared_tickets_run_beside_each_other() -> None:
    """With nobody exclusive all are granted at once, and an exclusive one waits for the last."""
    lock = FifoLock()
    shared = [lock.enqueue(SHARED, lambda: None) for _ in range(3)]
    alone = lock.enqueue(EXCLUSIVE, lambda: None)

    assert all(ticket.granted for ticket in shared)
    for ticket in shared:
        assert not alone.granted
        lock.release(ticket)
    assert alone.granted


def test_a_ticket_ends_once() -> None:
    """A second release changes nothing."""
    lock = FifoLock()
    first, second = (lock.enqueue(SHARED, lambda: None) for _ in range(2))
    alone = lock.enqueue(EXCLUSIVE, lambda: None)
    lock.release(first)
    lock.release(first)

    assert not alone.granted
    lock.release(second)
    assert alone.granted
