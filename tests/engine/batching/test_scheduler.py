import pytest

from engine.batching.scheduler import ChunkPlan, Scheduler, StepPlan, Waiting
from engine.batching.slot import IllegalStep, Slot, SlotState


class Caches:
    """What each slot could keep of the prompt, and what it holds: (kept, held) a slot."""

    def __init__(self, **slots) -> None:
        self.slots = {int(name[1:]): sizes for name, sizes in slots.items()}

    def reusable(self, slot, tokens):
        return min(self.slots.get(slot, (0, 0))[0], len(tokens))

    def held(self, slot):
        return self.slots.get(slot, (0, 0))[1]


nothing_cached = Caches()


def waiting(name, n_tokens=10, **fields):
    return Waiting(request_id=name, prompt=list(range(n_tokens)), **fields)


def begin(scheduler, name, n_tokens=10, caches=nothing_cached, **fields):
    scheduler.enqueue(waiting(name, n_tokens, **fields))
    assignment = scheduler.assign(caches)
    assert assignment is not None and assignment.waiting.request_id == name
    scheduler.begin(assignment.slot, name, remote=False, start=assignment.cached, stop=n_tokens - 1)
    return assignment.slot


def test_a_prompt_is_cut_into_equal_chunks_and_its_last_token_decodes_alone():
    scheduler = Scheduler(n_slots=1, chunk_tokens=4)
    begin(scheduler, "a", 11)
    chunks = []
    while (plan := scheduler.plan()).prefill is not None:
        assert plan.decode == ()
        chunks.append((plan.prefill.first, plan.prefill.stop))
        scheduler.chunk_done(0)
    assert chunks == [(0, 4), (4, 7), (7, 10)]
    assert plan == StepPlan(prefill=None, decode=(0,))


def test_a_one_token_prompt_decodes_at_once():
    scheduler = Scheduler(n_slots=1)
    begin(scheduler, "a", 1)
    assert scheduler.plan() == StepPlan(prefill=None, decode=(0,))


def test_decoding_slots_share_every_step_with_one_chunk():
    scheduler = Scheduler(n_slots=3, chunk_tokens=4)
    begin(scheduler, "short", 1)
    begin(scheduler, "long", 13)
    for first in (0, 4, 8):
        assert scheduler.plan() == StepPlan(
            prefill=ChunkPlan(slot=1, first=first, stop=first + 4), decode=(0,)
        )
        scheduler.chunk_done(1)
    assert scheduler.plan() == StepPlan(prefill=None, decode=(0, 1))


def test_prefilling_slots_take_turns():
    scheduler = Scheduler(n_slots=2, chunk_tokens=4)
    begin(scheduler, "a", 13)
    begin(scheduler, "b", 9)
    turns = []
    for _ in range(5):
        plan = scheduler.plan()
        turns.append(plan.prefill.slot)
        scheduler.chunk_done(plan.prefill.slot)
    assert turns == [0, 1, 0, 1, 0]


def test_the_longest_cached_prefix_picks_the_slot():
    scheduler = Scheduler(n_slots=3)
    scheduler.enqueue(waiting("a", 100))
    assignment = scheduler.assign(Caches(s0=(20, 30), s1=(60, 90), s2=(40, 40)))
    assert (assignment.slot, assignment.cached) == (1, 60)


def test_the_last_token_is_never_taken_from_the_cache():
    scheduler = Scheduler(n_slots=1)
    scheduler.enqueue(waiting("a", 8))
    assert scheduler.assign(Caches(s0=(99, 99))).cached == 7


@pytest.mark.parametrize(
    ("kept", "held", "n_prompt", "slot"),
    [
        (30, 60, 100, 0),  # most of what the slot holds: its next turn
        (29, 60, 100, 1),  # a new chat with the same system prompt
        (64, 900, 100, 0),  # long enough to be worth more than what is lost
        (9, 9, 100, 1),  # saves next to nothing
    ],
)
def test_a_common_beginning_wins_over_age_only_if_it_is_worth_it(kept, held, n_prompt, slot):
    scheduler = Scheduler(n_slots=2)
    assert begin(scheduler, "a") == 0
    scheduler.finish(0)
    scheduler.enqueue(waiting("b", n_prompt))
    assignment = scheduler.assign(Caches(s0=(kept, held)))
    assert (assignment.slot, assignment.cached) == (slot, kept if slot == 0 else 0)


def test_the_least_recently_used_slot_is_taken_and_keeps_what_it_can():
    scheduler = Scheduler(n_slots=2)
    assert begin(scheduler, "a") == 0
    assert begin(scheduler, "b") == 1
    scheduler.finish(1)
    scheduler.finish(0)
    scheduler.enqueue(waiting("c", 100))
    assignment = scheduler.assign(Caches(s0=(3, 9), s1=(3, 9)))
    assert (assignment.slot, assignment.cached) == (0, 3)


def test_no_reuse_when_the_request_says_so():
    scheduler = Scheduler(n_slots=1)
    scheduler.enqueue(waiting("a", reuse=False))
    assert scheduler.assign(Caches(s0=(99, 99))).cached == 0


def test_the_queue_is_first_come_first_served():
    scheduler = Scheduler(n_slots=1)
    begin(scheduler, "a")
    scheduler.enqueue(waiting("b"))
    scheduler.enqueue(waiting("c"))
    assert scheduler.assign(nothing_cached) is None
    scheduler.finish(0)
    assert scheduler.assign(nothing_cached).waiting.request_id == "b"
    assert scheduler.n_queued == 1


def test_a_pinned_request_waits_for_its_slot_and_lets_others_pass():
    scheduler = Scheduler(n_slots=2)
    begin(scheduler, "a", slot=0)
    scheduler.enqueue(waiting("pinned", slot=0))
    assert begin_next(scheduler, waiting("b")) == ("b", 1)
    scheduler.finish(0)
    assert scheduler.assign(nothing_cached).waiting.request_id == "pinned"


def begin_next(scheduler, request):
    scheduler.enqueue(request)
    assignment = scheduler.assign(nothing_cached)
    scheduler.begin(assignment.slot, assignment.waiting.request_id, remote=False, start=0, stop=9)
    return assignment.waiting.request_id, assignment.slot


def test_a_queued_request_can_be_withdrawn():
    scheduler = Scheduler(n_slots=1)
    scheduler.enqueue(waiting("a"))
    assert scheduler.withdraw("a")
    assert not scheduler.withdraw("a")
    assert scheduler.assign(nothing_cached) is None


def begin_remote(scheduler):
    scheduler.enqueue(waiting("a"))
    assignment = scheduler.assign(nothing_cached)
    scheduler.begin(assignment.slot, "a", remote=True, start=0, stop=9)
    return scheduler.slots[assignment.slot]


def test_a_remote_prefill_plans_nothing_until_it_is_done():
    scheduler = Scheduler(n_slots=1)
    begin_remote(scheduler)
    assert scheduler.plan() is None
    scheduler.remote_done(0)
    assert scheduler.plan() == StepPlan(prefill=None, decode=(0,))


def test_lent_memory_is_not_given_to_anyone_before_it_is_released():
    scheduler = Scheduler(n_slots=1)
    slot = begin_remote(scheduler)
    scheduler.finish(0)
    assert slot.state is SlotState.RELEASING
    scheduler.enqueue(waiting("b"))
    assert scheduler.assign(nothing_cached) is None
    scheduler.released(0)
    assert scheduler.assign(nothing_cached).waiting.request_id == "b"


def test_a_failed_handoff_goes_on_here_only_after_the_release():
    scheduler = Scheduler(n_slots=1, chunk_tokens=4)
    begin_remote(scheduler)
    scheduler.remote_failed(0)
    with pytest.raises(IllegalStep):
        scheduler.resume_here(0, start=4, stop=9)
    scheduler.released(0)
    assert scheduler.slots[0].state is SlotState.RELEASING
    scheduler.resume_here(0, start=4, stop=9)
    assert scheduler.plan().prefill == ChunkPlan(slot=0, first=4, stop=7)


def test_an_answer_may_end_before_the_memory_is_released():
    scheduler = Scheduler(n_slots=1)
    slot = begin_remote(scheduler)
    scheduler.remote_done(0)
    scheduler.finish(0)
    assert slot.state is SlotState.RELEASING
    scheduler.released(0)
    assert slot.state is SlotState.IDLE


def test_an_illegal_step_is_an_error():
    with pytest.raises(IllegalStep, match="from idle to releasing"):
        Slot(index=0).move(SlotState.RELEASING)
