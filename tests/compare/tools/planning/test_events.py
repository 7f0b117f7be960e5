"""Tasks on devices and links, event by event."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.tools.planning import events
from compare.tools.planning.events import Task


@st.composite
def tasks(draw: st.DrawFn) -> list[Task]:
    made: list[Task] = []
    for place in range(draw(st.integers(1, 14))):
        needs = tuple(draw(st.sets(st.integers(0, place - 1), max_size=3))) if place else ()
        seconds = float(draw(st.integers(0, 5)))
        resource = draw(st.sampled_from(["a", "b", "link"]))
        made.append(Task(resource, seconds, needs, "communication" if resource == "link" else "compute"))
    return made


@given(tasks())
@settings(max_examples=40, deadline=None)
def test_no_task_is_early_late_or_at_the_same_time_as_another_of_its_resource(made: list[Task]) -> None:
    spans = events.run(made)
    for task, span in zip(made, spans, strict=True):
        assert span.end == span.start + task.seconds
        assert span.ready == max((spans[need].end for need in task.needs), default=0.0) <= span.start
    for resource in ("a", "b", "link"):
        own = sorted(span[1:] for task, span in zip(made, spans, strict=True) if task.resource == resource and task.seconds)
        assert all(before[1] <= behind[0] for before, behind in itertools.pairwise(own))
    # A resource is never idle while a task is ready for it: each begins when it is ready, or when another of its own ends.
    for task, span in zip(made, spans, strict=True):
        ends = {other.end for each, other in zip(made, spans, strict=True) if each.resource == task.resource}
        assert span.start in {span.ready} | ends


@given(tasks())
@settings(max_examples=40, deadline=None)
def test_the_parts_of_all_devices_add_up_to_the_time_of_the_whole(made: list[Task]) -> None:
    spans = events.run(made)
    found = events.parts(made, spans, ["a", "b"])
    assert found.total == pytest.approx(max(span.end for span in spans))
    assert min(found) >= -1e-12
    assert found.compute == pytest.approx(sum(task.seconds for task in made if task.resource != "link") / 2)


def test_an_idle_device_waits_for_links_queues_and_other_devices() -> None:
    made = [
        Task("a", 2.0),
        Task("link", 3.0, (0,), "communication"),
        Task("link", 1.0, (0,), "communication"),  # queues for the link
        Task("b", 1.0, (2,)),
    ]
    spans = events.run(made)
    assert [span.end for span in spans] == [2.0, 5.0, 6.0, 7.0]
    assert events.parts(made, spans, ["b"]) == (1.0, 0.0, 4.0, 2.0)  # computed, input, exposed, bubble
    assert events.parts(made, spans, ["a"]) == (2.0, 0.0, 4.0, 1.0)


def test_a_task_that_needs_a_later_one_is_refused() -> None:
    with pytest.raises(ValueError, match="earlier"):
        events.run([Task("a", 1.0, (1,)), Task("a", 1.0)])
