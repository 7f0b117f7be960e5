"""Specs, studies, papers and stored results from anybody: each is read, or refused with a sentence. Nothing else happens.

The draws are seeded. The quick tests take a few seconds; `make test-all` draws many times as much.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from common import spec
from common.artifacts import atomic_files, event_log, results
from common.data.sources import DataRefused
from common.spec import SpecError, plain_values
from compare.core.errors import FolderError
from compare.execution import matrix, run_settings, store
from compare.execution.store import flat
from compare.papers import schema
from compare.regression import history
from compare.reporting import comparison_report
from compare.workflows.study_file import SCALES, Study
from tests.compare import made

PROJECT = Path(__file__).parents[2]
REFUSALS = (SpecError, FolderError, DataRefused)
"""What `exits.reported` turns into an exit code and a sentence."""

QUICK, MANY = 40, 3000


@contextmanager
def refused_at_most() -> Iterator[None]:
    try:
        yield
    except REFUSALS as refusal:
        if not str(refusal).strip():
            raise AssertionError("a refusal without a sentence") from refusal


# What is drawn.

numbers = st.integers() | st.sampled_from([0, -1, 1, 2, 3, 2**31, 2**63, 10**20, 10**99, 10**400]) | st.floats()
words = st.text(max_size=20) | st.sampled_from(
    ["", "~nobody/x", "a/../../b", "\0", "\ud800", "1e-3", ".inf", "=1+1", "x" * 5000, "serial", "digits", "os.path", "all"]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in nested ones."""
    yield at
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in pairs:
        yield from places(value, (*at, name))


@st.composite
def altered(draw: st.DrawFn, tree: Any) -> Any:
    """Nested values with a few of them replaced, removed or added to."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from([place for place in places(tree) if place]))
        inside = tree
        for name in parents:
            inside = inside[name]
        how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if how == "remove":
            del inside[last]
        elif how == "add" and isinstance(inside, dict):
            inside[draw(words)] = draw(values)
        else:
            inside[last] = draw(values | like(inside[last]))
    return tree


def like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same kind, which a schema may let pass."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return numbers | st.integers(-3, 10**6)
    return words if isinstance(value, str) else values


markup = st.text("[]{}:,-?&*!|>'\"%@`#<=~. \n\tab019xe\0\ufeff", max_size=200)


def as_json(tree: Any) -> str:
    return json.dumps(tree)


def as_yaml(tree: Any) -> str:
    try:
        return yaml.safe_dump(tree)
    except yaml.YAMLError:
        return json.dumps(tree)


@cache
def spec_values() -> dict[str, Any]:
    return json.loads(spec.build({"framework_options": {"compile": True}, "hosts": []}).to_json())


@cache
def file_values(path: str) -> dict[str, Any]:
    return plain_values.from_yaml((PROJECT / path).read_text())


def of_file(tree: Callable[[], Any]) -> st.SearchStrategy[tuple[str, str]]:
    """(suffix, text) of a file: that of a good one with changes, or anything."""
    changed = st.deferred(lambda: altered(tree()))
    return (
        st.tuples(st.just(".json"), changed.map(as_json))
        | st.tuples(st.just(".yaml"), changed.map(as_yaml))
        | st.tuples(st.sampled_from([".json", ".yaml", ".yml", ""]), markup)
    )


assignments = st.lists(
    st.tuples(
        st.sampled_from([*flat(spec.build({}).model_dump()), "optimizer", "data", "a.b", ".", "", "=", "x." * 99]) | words,
        markup | words | values.map(as_json),
    ).map("=".join),
    min_size=1,
    max_size=3,
)


# What is done with it: as the commands do, until they would start processes.


def plan_a_comparison(path: Path | None, asked: list[str]) -> None:
    with refused_at_most():
        chosen = run_settings.settings(None, path, {}, asked)
        for mode in (*chosen.modes, "hybrid_tensor", "parameter_server"):
            with refused_at_most():
                matrix.rows(chosen.values, ["pytorch"], [mode], chosen.replicas, chosen.workers, chosen.levels)


@contextmanager
def file_of(text: tuple[str, str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"given{text[0]}"
        path.write_bytes(text[1].encode("utf-8", "surrogatepass"))
        yield path


def check_spec(text: tuple[str, str]) -> None:
    with file_of(text) as path:
        plan_a_comparison(path, [])
        with refused_at_most():
            spec.from_json(path.read_bytes())


def check_study(text: tuple[str, str], scale: str) -> None:
    with file_of(text) as path, refused_at_most():
        Study.read(path, scale, {})


def check_paper(text: tuple[str, str]) -> None:
    with file_of(text) as path, refused_at_most():
        schema.read(path, "given")


@cache
def comparison() -> tuple[Any, dict[str, Any]]:
    """The plan of a comparison and its results by folder, plain."""
    stored = made.repeated(1)
    runs = {
        store.run_folder(Path(), row, repeat).as_posix(): json.loads(result.model_dump_json())
        for row, repeats in stored.runs.items()
        for repeat, result in repeats.items()
    }
    return json.loads(stored.comparison.model_dump_json()), runs


def check_results(plan: Any, runs: dict[str, Any]) -> None:
    """A stranger's folder has right checksums: they protect against accidents only."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _store(folder / store.PLAN_FILE, plan)
        for run, result in runs.items():
            _store(folder / run / results.RESULT_FILE, result)
        with refused_at_most():
            compared = comparison_report.read(folder)
            report = comparison_report.report(compared, None)
            report.to_json()
            report.to_markdown()
        with refused_at_most():
            history.points(folder, ["epoch_seconds"])


def _store(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tree)
    path.write_text(atomic_files.with_checksum(text) if isinstance(tree, dict) else text)


events = st.lists(
    st.binary(max_size=60)
    | markup.map(str.encode)
    | st.dictionaries(words | st.sampled_from(["event", "epoch", "sha256"]), values, max_size=5).map(as_json).map(str.encode)
    | st.just(atomic_files.line_with_checksum({"event": "epoch", "epoch": 1})),
    max_size=5,
)


def check_events(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / event_log.EVENTS_FILE).write_bytes(b"\n".join(lines))
        event_log.read_epochs(Path(name))
        good, bad = event_log.read_events(Path(name)), event_log.damaged_events(Path(name))
        assert len(good) + len(bad) == len([line for line in b"\n".join(lines).split(b"\n") if line])


KINDS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "spec files": (check_spec, (of_file(spec_values),)),
    "--set": (lambda asked: plan_a_comparison(None, asked), (assignments,)),
    "studies": (check_study, (of_file(lambda: file_values("studies/plant-disease.yaml")), st.sampled_from(SCALES))),
    "papers": (check_paper, (of_file(lambda: file_values("compare/papers/tomato-two-frameworks.yaml")),)),
    "plans": (lambda plan: check_results(plan, comparison()[1]), (st.deferred(lambda: altered(comparison()[0])),)),
    "results": (
        lambda runs: check_results(comparison()[0], runs),
        (
            st.deferred(lambda: altered(comparison()[1])).filter(
                lambda runs: all(isinstance(run, dict) for run in runs.values())
            ),
        ),
    ),
    "events": (check_events, (events,)),
}


def draw(kind: str, examples: int) -> None:
    check, drawing = KINDS[kind]

    @seed(28)
    @settings(max_examples=examples, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*drawing))
    def each(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    each()


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_very_much_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, MANY)
