import errno
import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import spec
from common.artifacts import atomic_files, event_log, records, results, schema
from common.artifacts.schema import EpochRecord, Metrics, ResultError, RunResult
from common.machine.plain_file import PlainFileError
from tests import hostile_files
from tests.support import comparisons
from tests.support.refusals import refused

METRICS = Metrics(loss=0.5, accuracy=0.75, num_correct=3, num_examples=4)
EPOCH = comparisons.epoch(1, 10.0)
"""640 images in 10 steps, 9 of which are timed."""
PHASES = comparisons.good(comparisons.row("pytorch"), 1.0).phases


def a_result(**fields: Any) -> RunResult:
    return RunResult.model_validate({"framework": "pytorch", "spec": spec.build({}), "status": "ok"} | fields)


NOT_AS_WRITTEN = "not as this suite wrote it"
"""What is said of a file whose checksum does not fit."""

floats = st.floats(allow_nan=False)  # infinite losses happen; NaN has its own test, for it equals nothing
metrics = st.builds(
    lambda loss, right, wrong: Metrics(
        loss=loss, accuracy=right / (right + wrong), num_correct=right, num_examples=right + wrong
    ),
    st.floats(0, allow_nan=False),
    st.integers(0, 2**62),
    st.integers(1, 2**62 - 1),
)
seconds = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
times = {f"{name}_seconds": seconds for name in ("timed", "input_wait", "evaluation")}
whole = {"steps": st.just(2**63 - 1), "images": st.just(2**63 - 1)}
epochs = st.builds(EpochRecord, train=metrics, validation=st.none() | metrics, learning_rate=floats, **times, **whole)
stored = st.builds(
    RunResult,
    schema_version=st.just(schema.SCHEMA_VERSION),
    spec=st.just(spec.build({"framework_options": {"compile": True}})),
    epochs=st.lists(epochs, max_size=3),
    # "its" is before every name: names that the record knows have kinds of their own, and hypothesis reads them in the code.
    machine=st.dictionaries(st.text().map("its {}".format), st.none() | st.booleans() | st.integers() | st.text()),
)


@given(stored)
def test_a_result_survives_being_saved_and_loaded(tmp_path_factory: pytest.TempPathFactory, result: RunResult) -> None:
    assert results.load(results.save(result, tmp_path_factory.mktemp("run"))) == result


def test_a_loss_that_is_not_a_number_survives_too(tmp_path: Path) -> None:
    diverged = comparisons.with_fields(METRICS, loss=math.nan)
    loaded = results.load(results.save(a_result(status="diverged", reason="loss is NaN at step 3", test=diverged), tmp_path))
    assert loaded.test is not None
    assert math.isnan(loaded.test.loss)
    assert (loaded.status, loaded.reason) == ("diverged", "loss is NaN at step 3")


def test_a_result_of_a_larger_machine_can_be_read(tmp_path: Path) -> None:
    path = results.save(a_result(), tmp_path)
    values = json.loads(path.read_text())
    values["spec"]["cores"] = 4096
    del values["sha256"]
    path.write_text(atomic_files.with_checksum(json.dumps(values)))
    assert results.load(path).spec.cores == 4096


@given(st.data())
def test_a_torn_result_is_refused_wherever_it_tears(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = results.save(a_result(epochs=[EPOCH], phases=PHASES), tmp_path_factory.mktemp("run"))
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with refused(ResultError, names=[path, "not a whole result", "Run it again"]):
        results.load(path)


def test_a_flipped_bit_anywhere_in_a_result_is_noticed(tmp_path: Path) -> None:
    whole = results.save(a_result(epochs=[EPOCH], phases=PHASES), tmp_path).read_bytes()
    path = tmp_path / "flipped.json"
    silent = 0
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 7
        path.write_bytes(flipped)
        try:
            results.load(path)
            silent += 1
        except ResultError:
            continue
        assert json.loads(flipped) == json.loads(whole)  # space for space
    assert silent < len(whole) / 10


def test_a_result_that_is_as_it_was_written_is_not_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = a_result(epochs=[EPOCH], spec=spec.build({"framework_options": {"two": [2], "one": 1}}))
    path = results.save(result, tmp_path)
    # A planted defect: what takes a record apart is gone. Only its time would tell otherwise.
    monkeypatch.setattr(atomic_files, "pop_valid_checksum", None)
    loaded = results.load(path)
    assert loaded == result
    assert loaded.spec.digest == result.spec.digest  # though a result holds its names in their order


@pytest.mark.parametrize("shape", [{"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_a_result_in_another_form_is_the_same_one_while_its_values_are(tmp_path: Path, shape: dict[str, Any]) -> None:
    result = a_result(epochs=[EPOCH], reason="größer, {as} [written]")
    path = results.save(result, tmp_path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(values.items())), **shape), "utf-8-sig")
    assert results.load(path) == result
    path.write_text(json.dumps(values | {"repeat": 1}, **shape))
    with refused(ResultError, names=[path, NOT_AS_WRITTEN]):
        results.load(path)


def change(**fields: Any) -> bytes:
    """A result with other fields and no checksum."""
    return json.dumps(json.loads(a_result().model_dump_json()) | fields).encode()


@pytest.mark.parametrize(
    "content",
    [a_result().model_dump_json().encode(), b"{}", b"[]", b"3", *(change(sha256=value) for value in (None, 0, "", []))],
)
def test_a_result_without_a_checksum_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / results.RESULT_FILE
    path.write_bytes(content)
    with refused(ResultError, names=[path, NOT_AS_WRITTEN, "checksum", "Run it again"]):
        results.load(path)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", ["whole result"]),
        (b"\xff", ["whole result", "UnicodeDecodeError"]),
        (b'{"status": "ok"}', ["schema_version", "None, needed: 1"]),
        ("{}".encode("utf-16"), ["whole result", "UnicodeDecodeError"]),
        (b'{"schema_version": 1, "spec": "\xed\xa0\x80"}', ["whole result", "UnicodeDecodeError"]),
        (b"[" * 100_000, ["whole result", "ValueError", "deep"]),
        (b"1" * 5_000, ["whole result", "ValueError"]),
        (b'{"schema_version": 1}', ["whole result", "ValidationError"]),
        (change(schema_version=0), ["schema_version", "0, needed: 1"]),
        (change(schema_version="1"), ["schema_version"]),
        (change(status="fine"), ["whole result", "status"]),
        (change(colour="red"), ["whole result", "colour"]),
        (change(spec={"sede": 1}), ["spec.sede"]),
        (change(spec=None), ["whole result", "spec"]),
        (change(epochs=[{"epoch": 1}]), ["whole result", "epochs"]),
        (change(confusion=[[]]), ["confusion", "square"]),
        (change(confusion=[[0, 0], [0, 0]]), ["confusion", "square"]),
        (change(confusion=[[1, 0], [1]]), ["confusion", "square"]),
    ],
)
def test_a_file_that_is_no_result_of_this_version_is_refused(tmp_path: Path, content: bytes, names: list[str]) -> None:
    path = tmp_path / results.RESULT_FILE
    is_object = content.isascii() and content.startswith(b'{"')
    path.write_bytes(atomic_files.line_with_checksum(json.loads(content)) if is_object else content)
    with refused(ResultError, names=[path, "Run it again", *names]):
        results.load(path)


def test_a_missing_result_is_refused_by_name(tmp_path: Path) -> None:
    with refused(ResultError, names=[tmp_path, results.RESULT_FILE, "Run it again"]):
        results.load(tmp_path / results.RESULT_FILE)
    with refused(ResultError, names=[tmp_path / "nowhere", "folder", "Run it again"]):
        results.load(tmp_path / "nowhere" / results.RESULT_FILE)


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError):
        a_result().status = "failed"  # pyright: ignore[reportAttributeAccessIssue]


def test_an_epochs_seconds_are_for_all_its_images_at_the_pace_of_the_timed_ones_if_any_is() -> None:
    assert (EPOCH.timed_seconds, EPOCH.timed_images, EPOCH.epoch_images) == (9.0, 576, 640)
    assert EPOCH.seconds == pytest.approx(10.0) and EPOCH.images_per_second == pytest.approx(64.0)
    assert comparisons.with_fields(EPOCH, epoch_images=1280).seconds == pytest.approx(20.0)
    untimed = comparisons.with_fields(EPOCH, steps=1, timed_steps=0, timed_images=0, timed_seconds=0.0)
    assert math.isnan(untimed.seconds) and math.isnan(untimed.images_per_second)


# Writing that a kill can interrupt.


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.txt"
    atomic_files.write_atomically(path, "old")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)  # a kill between writing and replacing
    with pytest.raises(KeyboardInterrupt):
        atomic_files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]

    monkeypatch.undo()
    atomic_files.write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError) as caught:
        atomic_files.write_atomically(tmp_path / "pipe", "new")
    assert str(tmp_path / "pipe") in str(caught.value) and "plain file" in str(caught.value)
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_cannot_be_written_is_known_before_and_a_trial_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "new", tmp_path / ("x" * 250)):
        with pytest.raises(OSError):
            atomic_files.check_writable(path)
    atomic_files.check_writable(tmp_path / "file")
    atomic_files.check_writable(tmp_path / "deep" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "x"


def test_events_come_back_in_their_order(tmp_path: Path) -> None:
    assert event_log.read_events(tmp_path) == []
    event_log.append_event(tmp_path, "start")
    event_log.append_event(tmp_path, "epoch", epoch=1, reason="a\nline \u2028 and another", loss=math.inf)
    assert event_log.read_events(tmp_path) == [
        {"event": "start"},
        {"event": "epoch", "epoch": 1, "reason": "a\nline \u2028 and another", "loss": math.inf},
    ]


def test_an_event_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    event_log.append_event(tmp_path, "start")
    whole = (tmp_path / event_log.EVENTS_FILE).read_bytes()
    line = json.dumps({"event": "epoch", "name": "ä"}, ensure_ascii=False).encode()
    for end in range(len(line)):
        (tmp_path / event_log.EVENTS_FILE).write_bytes(whole + line[:end])
        assert event_log.read_events(tmp_path) == [{"event": "start"}]


def test_an_event_whose_names_are_in_another_order_is_whole_too_and_one_without_its_checksum_is_not(tmp_path: Path) -> None:
    values = {"event": "epoch", "epoch": 1, "a": [1.5, None]}
    lines = [
        {**values, "sha256": atomic_files.digest(values)},
        values,
        {**values, "epoch": 2, "sha256": atomic_files.digest(values)},
    ]
    (tmp_path / event_log.EVENTS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert event_log.read_events(tmp_path) == [values]
    assert event_log.damaged_events(tmp_path) == [2, 3]


def test_an_event_after_a_torn_line_is_not_lost_with_it(tmp_path: Path) -> None:
    event_log.append_event(tmp_path, "start")
    with (tmp_path / event_log.EVENTS_FILE).open("a") as file:
        file.write('{"event": "epo')
    event_log.append_event(tmp_path, "end", status="killed")
    assert event_log.read_events(tmp_path) == [{"event": "start"}, {"event": "end", "status": "killed"}]
    assert event_log.damaged_events(tmp_path) == [2]


def test_what_does_not_fit_is_named_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    event_log.append_event(tmp_path, "start")
    path = tmp_path / event_log.EVENTS_FILE
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 8, limits[1]))
    try:
        with pytest.raises(OSError) as of_events:
            event_log.append_event(tmp_path, "end", status="ok")
        with pytest.raises(OSError) as of_result:
            atomic_files.write_atomically(tmp_path / "result.json", 1000 * "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for caught, file in ((of_events, path), (of_result, tmp_path / "result.json")):
        assert caught.value.errno == errno.EFBIG and caught.value.filename == str(file)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_flipped_bit_anywhere_in_an_event_is_noticed(tmp_path: Path) -> None:
    event_log.append_event(tmp_path, "epoch", **EPOCH.model_dump())
    path = tmp_path / event_log.EVENTS_FILE
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 7
        path.write_bytes(flipped)
        assert event_log.read_epochs(tmp_path) in ([], [EPOCH])
        lines = [line for line in flipped.split(b"\n") if line]
        assert len(event_log.read_events(tmp_path)) + len(event_log.damaged_events(tmp_path)) == len(lines)


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_pipe_or_an_endless_file_is_no_result_and_no_events(name: str, tmp_path: Path) -> None:
    result, events = tmp_path / results.RESULT_FILE, tmp_path / event_log.EVENTS_FILE
    reason = hostile_files.put(name, result).strip()
    hostile_files.put(name, events)
    with hostile_files.soon():
        with refused(ResultError, names=[f"{result} {reason}", "Run it again"]):
            results.load(result)
        with refused(PlainFileError, names=[f"{events} {reason}"]):
            event_log.damaged_events(tmp_path)


def test_a_result_of_many_epochs_and_classes_is_far_from_the_limit(tmp_path: Path) -> None:
    """10,000 epochs and 1,000 classes have a tenth of what is read."""
    long = comparisons.with_fields(EPOCH, validation=METRICS, learning_rate=1 / 3, evaluation_seconds=1 / 3)
    whole = a_result(epochs=[long] * 100, confusion=[[12345] * 100] * 100)
    few = results.save(whole, tmp_path).stat().st_size
    assert 100 * few < records.MOST_BYTES / 2


def test_of_events_that_are_all_damaged_the_first_are_named(tmp_path: Path) -> None:
    (tmp_path / event_log.EVENTS_FILE).write_bytes(b"x\n" * 2**20)
    assert event_log.damaged_events(tmp_path) == list(range(1, event_log.MOST_DAMAGED + 1))
