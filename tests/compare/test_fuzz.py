"""Specs, results, images, archives and checkpoints from anybody: each is read, or refused with a sentence, and nothing else.

The draws are seeded. The quick tests take a few seconds; `make test-all` draws many times as much. A campaign of one kind:

    CONVTWINS_FUZZ_INPUTS=100000 pytest tests/compare/test_fuzz.py -m slow -s -k plans

CONVTWINS_FUZZ_FIRST=50000 goes on where another campaign of 50,000 ended. What a tool reads is drawn among its own tests.
"""

import copy
import gc
import io
import json
import mmap
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from common import spec
from common.artifacts import atomic_files, checked_arrays, checkpoint, event_log, results, trained
from common.artifacts.checkpoint import CheckpointError
from common.data.decoding import decode
from common.data.decoding.decode import BadImageError
from common.data.sources import DataRefused, archives
from common.models import architectures, weights
from common.models.weights import WeightsError
from common.spec import SpecError, plain_values
from compare.cli.errors import FolderError
from compare.reporting import comparison_report
from compare.results import store
from compare.results.store import flatten
from compare.running import contestants, run_settings
from tests.common.data.sources import test_archives
from tests.support import comparisons

PROJECT = Path(__file__).parents[2]
REFUSALS = (SpecError, FolderError, DataRefused, BadImageError, CheckpointError, WeightsError)
"""What becomes an exit code and a sentence (tests/compare/cli/test_exits.py), or a line of a report."""

QUICK, MANY = 40, int(os.environ.get("CONVTWINS_FUZZ_INPUTS", "3000"))
FIRST = int(os.environ.get("CONVTWINS_FUZZ_FIRST", "0"))
SEED, AT_ONCE = 28, 50
"""So many inputs are drawn with each seed, and the next seed follows."""
CPU_SECONDS, MAX_MIB = 5.0, 512
"""For one input, and for all of one kind."""
WALL_SECONDS = 120.0
"""For an input that waits. Many times CPU_SECONDS: other work may hold the cores."""
LINUX = sys.platform == "linux"


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
        inner = [place for place in places(tree) if place]
        if not inner:
            break  # nothing is left
        *parents, last = draw(st.sampled_from(inner))
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
        st.sampled_from([*flatten(spec.build({}).model_dump()), "optimizer", "data", "a.b", ".", "", "=", "x." * 99]) | words,
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
                chosen.updated(modes=(mode,)).build_rows(contestants.resolve(["pytorch"]))


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


@cache
def comparison() -> tuple[Any, dict[str, Any]]:
    """The plan of a comparison and its results by folder, plain."""
    stored = comparisons.repeated(1)
    runs = {
        store.run_folder(Path(), row, repeat).as_posix(): json.loads(result.model_dump_json())
        for row, repeats in stored.runs.items()
        for repeat, result in repeats.items()
    }
    return json.loads(stored.comparison.model_dump_json()), runs


def make_report(folder: Path) -> None:
    compared = comparison_report.read(folder)
    report = comparison_report.report(compared, None)
    report.to_json()
    report.to_markdown()


def check_results(plan: Any, runs: dict[str, Any], read: Callable[[Path], object] = make_report) -> None:
    """A stranger's folder has right checksums: they protect against accidents only."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _store(folder / store.PLAN_FILE, plan)
        for run, result in runs.items():
            if re.fullmatch(r"[\w./-]{1,200}", run, re.ASCII) and ".." not in run and not run.startswith("/"):
                _store(folder / run / results.RESULT_FILE, result)
        with refused_at_most():
            read(folder)


def _store(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tree)
    path.write_text(_with_checksum(text) if isinstance(tree, dict) else text)


@lru_cache(maxsize=100)
def _with_checksum(text: str) -> str:
    """Most files of a drawn folder are as they were."""
    return atomic_files.with_checksum(text)


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


@st.composite
def damaged(draw: st.DrawFn, contents: Callable[[], list[bytes]]) -> bytes:
    """One of the contents with a few bytes changed, most near its begin, and perhaps cut. Checksums of tars may fit again."""
    content = bytearray(draw(st.sampled_from(contents())))
    for _ in range(draw(st.integers(0, 5))):
        place = draw(st.integers(0, min(len(content), 600) - 1) | st.integers(0, len(content) - 1))
        content[place] = draw(st.integers(0, 255) | st.sampled_from(b"0123456789 =,\n\0\x80\xffLKSxgX"))
        start = place // 512 * 512
        if content[start + 257 : start + 262] == b"ustar" and draw(st.booleans()):
            content[start : start + 512] = test_archives.sealed(bytes(content[start : start + 512]))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 3)) == 0 else content)


@cache
def good_images() -> list[bytes]:
    found: list[bytes] = []
    for mode in ("RGB", "L", "P", "CMYK", "RGBA"):
        for image_format in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"):
            file = io.BytesIO()
            try:
                Image.effect_noise((9, 7), 90).convert(mode).save(file, image_format)
            except (OSError, ValueError):  # a format without this mode
                continue
            found.append(file.getvalue())
    return found


def check_image(content: bytes) -> None:
    for read in (decode.examine, lambda content: decode.decode(content, 8)):
        with refused_at_most():
            read(content)


@cache
def good_archives() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        return test_archives.archive_of_every_kind(Path(name))


def check_archive(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name, refused_at_most():
        path = Path(name) / "given"
        path.write_bytes(content)
        if (archive := archives.open_archive(path)) is not None:
            listing = archive.listing()
            assert sorted(name for name, _ in archive.read(listing.files)) == sorted(listing.files)


@cache
def good_checkpoint() -> tuple[dict[str, Any], dict[str, Any]]:
    """(metadata, arrays), plain."""
    found = comparisons.checkpoint()
    progress = json.loads(found.progress.model_dump_json())
    return {"version": "2", "progress": progress}, {"ids": found.ids, "state/kernel": found.state["kernel"]}


@cache
def good_model() -> tuple[dict[str, Any], dict[str, Any]]:
    card = {
        "framework": "pytorch", "versions": {"torch": "2"}, "model": "simple_cnn", "width": 0.125,
        "class_names": list("0123456789"), "image_size": 32, "pixel_mean": [0.5, 0.5, 0.5], "pixel_std": [1.0, 1.0, 1.0],
        "precision": "float32", "spec_hash": "0", "data_hash": "0", "seed": 0, "epoch": 1, "validation": None,
    }  # fmt: skip
    return {"version": "1", "card": card}, dict(weights.initial(architectures.resolve("simple_cnn", 10, 32, width=0.125), 0))


@st.composite
def tensors(draw: st.DrawFn, good: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> bytes:
    """A safetensors file with other metadata and a right checksum, or with another header, or with other bytes."""
    words, arrays = good()
    how = draw(st.sampled_from(["metadata", "header", "bytes"]))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "given"
        plain = draw(altered(words)) if how == "metadata" else words
        texts = {each: value if isinstance(value, str) else json.dumps(value) for each, value in plain.items()}
        try:
            checked_arrays.write(path, texts, arrays)
        except UnicodeEncodeError:  # a name with half a letter, which no such file can hold
            checked_arrays.write(path, {}, arrays)
        content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if how == "header":
        header = json.dumps(draw(altered(json.loads(content[8 : 8 + length])))).encode()
        content = len(header).to_bytes(8, "little") + header + content[8 + length :]
    return draw(damaged(lambda: [content])) if how == "bytes" else content


def check_tensors(content: bytes, load: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as name, refused_at_most():
        (Path(name) / checkpoint.FILE).write_bytes(content)
        load(Path(name))


plans = st.deferred(lambda: altered(comparison()[0]))
runs_of_a_folder = st.deferred(lambda: altered(comparison()[1])).filter(
    lambda runs: all(isinstance(run, dict) for run in runs.values())
)
Kinds = dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]]
"""What is done with an input, and how inputs are drawn, by what they are."""
KINDS: Kinds = {
    "spec files": (check_spec, (of_file(spec_values),)),
    "--set": (lambda asked: plan_a_comparison(None, asked), (assignments,)),
    "plans": (lambda plan: check_results(plan, comparison()[1]), (plans,)),
    "results": (lambda runs: check_results(comparison()[0], runs), (runs_of_a_folder,)),
    "events": (check_events, (events,)),
    "images": (check_image, (damaged(good_images),)),
    "archives": (check_archive, (damaged(good_archives),)),
    "checkpoints": (lambda content: check_tensors(content, checkpoint.load), (tensors(good_checkpoint),)),
    "trained models": (
        lambda content: check_tensors(content, lambda folder: trained.load(folder / checkpoint.FILE)),
        (tensors(good_model),),
    ),
}


class TooLong(BaseException):
    """`except Exception` in the code under test does not take it. Hypothesis looks for no smaller one, which may be endless."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends what computes for more than CPU_SECONDS, and what waits for more than WALL_SECONDS."""

    def end(*_: object) -> None:
        raise TooLong

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, CPU_SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WALL_SECONDS)}
    before = {number: signal.signal(number, end) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds, 1.0)  # again and again: a destructor would lose a single one
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])


def draw(kind: str, inputs: int, kinds: Kinds = KINDS) -> None:
    check, drawing = kinds[kind]
    done, longest, before = 0, 0.0, _forget_the_peak()
    last: tuple[Any, ...] = ()

    def each(drawn: tuple[Any, ...]) -> None:
        nonlocal done, longest, last
        last, begun = drawn, time.process_time()
        with time_limit():
            check(*drawn)
        done, longest = done + 1, max(longest, time.process_time() - begun)

    for number in range(FIRST, FIRST + inputs, AT_ONCE):
        chosen = settings(
            max_examples=min(AT_ONCE, FIRST + inputs - number),
            derandomize=False,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        drawn_with = SEED + number // AT_ONCE
        try:
            seed(drawn_with)(chosen(given(st.tuples(*drawing))(each)))()
        except BaseException as error:
            print(f"{kind}: stopped after {number:,} inputs; CONVTWINS_FUZZ_FIRST={number} goes on")
            if isinstance(error, TooLong):
                raise AssertionError(f"{kind}: an input of seed {drawn_with} took too long: {last!r:.2000}") from error
            raise
        gc.collect()  # what was drawn lies in cycles, megabytes of each model
    grown = _peak_mib() - before
    assert grown < MAX_MIB, f"{kind}: {grown:.0f} MiB"
    assert done == inputs, f"{kind}: {done:,} of {inputs:,} inputs"
    print(f"{kind}: {done:,} inputs, at most {longest:.2f} s of CPU for one, and {grown:.0f} MiB more memory")


def _forget_the_peak() -> float:
    """The memory of now, MiB, above which later peaks count. Off Linux earlier peaks count too."""
    if LINUX:
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_mib()


def _peak_mib() -> float:
    """The most memory that this process has had at once."""
    if LINUX:
        (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(kib) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def spin(_: int) -> None:
    while True:
        with suppress(Exception):
            time.monotonic()


@pytest.mark.parametrize("endless", [spin, lambda _: time.sleep(3600)], ids=["computes", "waits"])
def test_an_endless_input_is_ended_and_named_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, endless: Callable[..., None]
) -> None:
    monkeypatch.setitem(globals(), "CPU_SECONDS", 0.3)
    monkeypatch.setitem(globals(), "WALL_SECONDS", 1.0)
    monkeypatch.setitem(KINDS, "endless", (endless, (st.just(7),)))
    with pytest.raises(AssertionError, match=rf"endless: an input of seed {SEED + FIRST // AT_ONCE} took too long: \(7,\)"):
        draw("endless", QUICK)


@pytest.mark.skipif(not LINUX, reason="Only Linux can forget an earlier peak.")
def test_a_kind_that_needs_much_memory_is_found_after_an_earlier_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(mib: int) -> None:
        def touch(_: int) -> None:
            with mmap.mmap(-1, mib * 2**20) as pages:  # an allocator may keep what was freed before
                for at in range(0, len(pages), mmap.PAGESIZE):
                    pages[at] = 1

        monkeypatch.setitem(KINDS, "large", (touch, (st.integers(),)))
        draw("large", 4)

    needs(96)
    monkeypatch.setitem(globals(), "MAX_MIB", 32)
    needs(1)
    with pytest.raises(AssertionError, match=r"large: \d+ MiB"):
        needs(64)


def test_inputs_that_were_not_drawn_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "few", (lambda _: None, (st.booleans(),)))
    with pytest.raises(AssertionError, match=f"few: 2 of {QUICK} inputs"):
        draw("few", QUICK)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_very_much_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, MANY)
