"""The gate's rules, driven by Hypothesis over the synchronous core and a clock that the test moves."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from app.errors import QueueFull
from app.scheduling.gate import Gate, GatePolicy
from app.scheduling.ticket import Admission, Ticket

POLICY = GatePolicy(exclusive_share=0.25, phase_seconds=3.0, key_seconds=2.0, most_shared=6, most_exclusive=6)
WINDOW_PER_SECOND = 3.0
"""(1 - 0.25) / 0.25, by hand."""


class GateMachine(RuleBasedStateMachine):
    """Enqueue, release and let time pass in any order; the rules at the head of gate.py hold after each step.

    What is expected is kept apart from the gate: who runs, when phases began and ended, what each ticket has seen.
    """

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.gate = Gate(POLICY, clock=lambda: self.now)
        self.live: list[Ticket] = []
        self.granted: list[Ticket] = []
        self.by_callback = 0
        self.peaks: dict[Ticket, int] = {}
        self.phase_began: float | None = None
        self.window_ends = 0.0
        self.begun_since: dict[Ticket, int] = {}
        self.others_used: dict[Ticket, dict[str, float]] = {}
        self.longest = 0.0
        self.contended = 0.0

    def _told(self) -> None:
        self.by_callback += 1

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0]))
    def time_passes(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        if self._exclusive() and self._waits(Admission.SHARED):
            self.contended += seconds

    @rule(
        target=tickets,
        admission=st.sampled_from(list(Admission)),
        key=st.sampled_from("abc"),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def enqueue(self, admission: Admission, key: str, priority: int) -> Ticket | None:
        """Someone comes; only one who finds his queue full is refused."""
        before = self._running()
        waiting = [other for other in self.live if not other.granted and other.admission is admission]
        try:
            ticket = self.gate.enqueue(admission, self._told, key=key, priority=priority)
        except QueueFull:
            assert not self._fits(waiting, admission, key)
            return None
        assert ticket.granted or self._fits(waiting, admission, key)
        self.live.append(ticket)
        self.begun_since[ticket] = 0
        self.others_used[ticket] = {}
        if ticket.granted and admission is Admission.SHARED and self._waits(Admission.EXCLUSIVE):
            assert self.now < self.window_ends
        self._note(before, newcomer=ticket)
        return ticket

    @staticmethod
    def _fits(waiting: list[Ticket], admission: Admission, key: str) -> bool:
        """Whether one more of a class may wait, when these do."""
        if admission is Admission.SHARED:
            return len(waiting) < 6
        return sum(ticket.key == key for ticket in waiting) < 6 - len(waiting)

    @rule(ticket=consumes(tickets))
    def release(self, ticket: Ticket | None) -> None:
        """Someone leaves, whether running or waiting; leaving twice changes nothing."""
        if ticket is None or ticket not in self.live:
            return
        before = self._running()
        expected = self.peaks.get(ticket, 0)
        self.live.remove(ticket)
        if ticket.admission is Admission.EXCLUSIVE and ticket.granted_at is not None:
            ran = self.now - ticket.granted_at
            self.longest = max(self.longest, ran)
            for other in self._waits(Admission.EXCLUSIVE):
                self.others_used[other][ticket.key] = self.others_used[other].get(ticket.key, 0.0) + ran
        self.gate.release(ticket)
        self.gate.release(ticket)
        assert ticket.peak == expected
        self._note([other for other in before if other is not ticket])

    @precondition(lambda self: self._exclusive())
    @rule()
    def the_exclusive_one_ends(self) -> None:
        """As `release`, of the ticket that matters most, so that phases of several tickets are common."""
        ticket = self._exclusive()[0]
        self._pass(1.0)
        self.release(ticket)

    def _running(self) -> list[Ticket]:
        return [ticket for ticket in self.live if ticket.granted]

    def _exclusive(self) -> list[Ticket]:
        return [ticket for ticket in self._running() if ticket.admission is Admission.EXCLUSIVE]

    def _waits(self, admission: Admission) -> list[Ticket]:
        return [ticket for ticket in self.live if not ticket.granted and ticket.admission is admission]

    def _note(self, before: list[Ticket], newcomer: Ticket | None = None) -> None:
        """Follow phases, peaks, and what every waiting ticket has had to watch."""
        new = [ticket for ticket in self._running() if ticket not in before]
        self.granted += new
        exclusive = [ticket for ticket in new if ticket.admission is Admission.EXCLUSIVE]
        shared_waits = [ticket for ticket in self._waits(Admission.SHARED) if ticket is not newcomer]
        if exclusive and self.phase_began is None:
            self.phase_began = self.now
            for ticket in self._waits(Admission.SHARED):
                self.begun_since[ticket] += 1
            # Inside the window only an engine that nobody uses may be taken.
            assert self.now >= self.window_ends or not shared_waits
        elif exclusive and self.phase_began is not None:
            assert not shared_waits or self.now - self.phase_began < POLICY.phase_seconds
        elif self.phase_began is not None and not self._exclusive():
            self.window_ends = max(self.window_ends, self.now + self.contended * WINDOW_PER_SECOND)
            self.phase_began, self.contended = None, 0.0
        for ticket in self._running():
            self.peaks[ticket] = max(self.peaks.get(ticket, 0), len(self._running()))

    @invariant()
    def exclusion(self) -> None:
        """An exclusive ticket runs alone."""
        if self._exclusive():
            assert len(self._running()) == 1

    @invariant()
    def nobody_waits_at_an_idle_gate(self) -> None:
        """No ticket is lost: with nothing running, nothing waits. So an exclusive one waits for one drain, not more."""
        if not self._running():
            assert self.live == []

    @invariant()
    def the_door_is_closed_for_exclusive_tickets_alone(self) -> None:
        """A shared ticket waits only while an exclusive one runs or waits."""
        if self._waits(Admission.SHARED):
            assert any(ticket.admission is Admission.EXCLUSIVE for ticket in self.live)

    @invariant()
    def shared_waits_for_one_phase(self) -> None:
        """Of the exclusive phases that begin while a shared ticket waits, it waits for one at most."""
        assert all(self.begun_since[ticket] <= 1 for ticket in self._waits(Admission.SHARED))

    @invariant()
    def no_window_grows_without_end(self) -> None:
        """What shared tickets are owed is bounded by one phase, so an exclusive one waits for no more than that."""
        assert self.window_ends - self.now <= (POLICY.phase_seconds + self.longest) * WINDOW_PER_SECOND

    @invariant()
    def first_come_first_served(self) -> None:
        """Nobody is granted before an earlier ticket of the same class, key and priority that still waits."""
        for place in {(ticket.admission, ticket.key, ticket.priority) for ticket in self.live}:
            alike = [t.granted for t in self.live if (t.admission, t.key, t.priority) == place]
            assert alike == sorted(alike, reverse=True)

    @invariant()
    def no_caller_keeps_another_out(self) -> None:
        """While a ticket waits, no other key runs for more than the rest of one round and a whole one."""
        most = 2 * (POLICY.key_seconds + self.longest)
        for ticket in self._waits(Admission.EXCLUSIVE):
            for key, used in self.others_used[ticket].items():
                first = min((t for t in self.live if t.key == ticket.key), key=lambda t: (t.priority, t.number))
                assert key == ticket.key or used <= most or first is not ticket

    @invariant()
    def counts_are_true(self) -> None:
        """The statistics are what the tickets say, each grant was told once, and estimates are times."""
        said = self.gate.statistics()
        assert said.shared == len(self._running()) - len(self._exclusive())
        assert said.exclusive == len(self._exclusive())
        assert said.waiting_shared == len(self._waits(Admission.SHARED))
        assert said.waiting_exclusive == len(self._waits(Admission.EXCLUSIVE))
        assert said.exclusive_admissions == sum(t.admission is Admission.EXCLUSIVE for t in self.granted)
        assert self.by_callback == len(self.granted)
        assert said.expected_wait_shared >= 0
        assert said.expected_wait_exclusive >= 0

    @invariant()
    def peaks_are_true(self) -> None:
        """The peak of a running ticket is the most that ran beside it so far, itself included."""
        for ticket in self._running():
            assert self.peaks[ticket] == ticket.peak


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
