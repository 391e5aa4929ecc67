"""The gate's rules, driven by Hypothesis over the synchronous core."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from app.scheduling.gate import Admission, Gate, Ticket

RUN = 3


class GateMachine(RuleBasedStateMachine):
    """Enqueue and release in any order; the rules at the head of gate.py hold after each step."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(exclusive_run=RUN)
        self.live: list[Ticket] = []
        self.grants: list[Ticket] = []
        self.by_callback = 0
        self.overtaken: dict[int, int] = {}
        self.peaks: dict[int, int] = {}

    def _granted(self) -> None:
        self.by_callback += 1

    @rule(target=tickets, admission=st.sampled_from(list(Admission)))
    def enqueue(self, admission: Admission) -> Ticket:
        """Someone comes."""
        before = self._running()
        ticket = self.gate.enqueue(admission, self._granted)
        self.live.append(ticket)
        self.overtaken[id(ticket)] = 0
        self._note(before)
        return ticket

    @rule(ticket=consumes(tickets))
    def release(self, ticket: Ticket) -> None:
        """Someone leaves, whether running or waiting; leaving twice changes nothing."""
        before = self._running()
        was_running = ticket.granted
        expected = self.peaks.get(id(ticket), 0)
        self.gate.release(ticket)
        self.gate.release(ticket)
        assert expected == ticket.peak or not was_running
        self.live.remove(ticket)
        self._note([other for other in before if other is not ticket])

    def _running(self) -> list[Ticket]:
        return [ticket for ticket in self.live if ticket.granted]

    def _note(self, before: list[Ticket]) -> None:
        """Count, per waiting shared ticket, the exclusive grants that overtook it, and follow each ticket's peak."""
        new = [ticket for ticket in self._running() if ticket not in before]
        self.grants += new
        for ticket in self.live:
            if not ticket.granted and ticket.admission is Admission.SHARED:
                self.overtaken[id(ticket)] += sum(other.admission is Admission.EXCLUSIVE for other in new)
        for ticket in self._running():
            self.peaks[id(ticket)] = max(self.peaks.get(id(ticket), 0), len(self._running()))

    @invariant()
    def exclusion(self) -> None:
        """An exclusive ticket runs alone."""
        running = self._running()
        if any(ticket.admission is Admission.EXCLUSIVE for ticket in running):
            assert len(running) == 1

    @invariant()
    def nobody_waits_at_an_idle_gate(self) -> None:
        """No ticket is lost: with nothing running, nothing waits."""
        if not self._running():
            assert self.live == []

    @invariant()
    def shared_wait_only_for_exclusive(self) -> None:
        """A shared ticket waits only while an exclusive one runs or waits."""
        if any(not ticket.granted and ticket.admission is Admission.SHARED for ticket in self.live):
            assert any(ticket.admission is Admission.EXCLUSIVE for ticket in self.live)

    @invariant()
    def first_come_first_served(self) -> None:
        """Within a class nobody is granted before an earlier ticket that still waits."""
        for admission in Admission:
            states = [ticket.granted for ticket in self.live if ticket.admission is admission]
            assert states == sorted(states, reverse=True)

    @invariant()
    def bounded_phase(self) -> None:
        """A shared ticket is overtaken by at most one exclusive phase, that is, by `exclusive_run` grants."""
        assert all(count <= RUN for count in self.overtaken.values())

    @invariant()
    def counts_are_true(self) -> None:
        """The statistics are what the tickets say, and each grant was told once."""
        said = self.gate.statistics()
        of = {
            (admission, granted): sum(t.admission is admission and t.granted is granted for t in self.live)
            for admission in Admission
            for granted in (True, False)
        }
        assert (said.shared, said.exclusive) == (of[Admission.SHARED, True], of[Admission.EXCLUSIVE, True])
        assert said.waiting_shared == of[Admission.SHARED, False]
        assert said.waiting_exclusive == of[Admission.EXCLUSIVE, False]
        assert self.by_callback == len(self.grants)

    @invariant()
    def peaks_are_true(self) -> None:
        """The peak of a running ticket is the most that ran beside it so far, itself included."""
        for ticket in self._running():
            assert self.peaks[id(ticket)] == ticket.peak


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
