"""Halves of a match: dumped where one framework is, and compared where none is. A user's own images. Swapped models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.matching.records import Array, OpenRequest, images, stress_inputs
from common.spec import SpecError
from compare.tools.matching import dumps, match, user_images
from compare.tools.matching.match import MatchSettings
from compare.tools.matching.model_comparison import Match, ModelProcess
from tests.support import trees
from tests.support.refusals import refused

TORCH, KERAS = "tests.planted.ports_torch", "tests.planted.ports_keras"
IMAGE, CLASSES, STEPS = (8, 8, 3), 5, 2
Both = tuple[ModelProcess, ModelProcess]


def record(both: Both, path: Path, net: str = "Net", *, steps: int = STEPS, data: str | None = None) -> Path:
    """The half of a PyTorch model."""
    settings = MatchSettings(IMAGE, CLASSES, steps, [], None, None, None, data)
    match.record(f"{TORCH}:{net}", settings, path, process=both[0])
    return path


class Unused:
    """A process that must not be asked: its model is a dump."""

    framework = ""

    def send(self, request: object) -> None:
        raise AssertionError(request)

    give = answer = send


UNUSED: Any = Unused()


def rungs(found: Match) -> list[tuple[Any, ...]]:
    return [
        (each.name, each.difference, each.status, [cause.name for cause in each.causes], each.left_out) for each in found.rungs
    ]


@pytest.mark.parametrize(
    ("net", "model"),
    [
        ("Net", "port"),
        ("Net", "same_padding"),
        # It parts far from the usual values alone, so single passes are recorded.
        ("with_relu6", "port"),
        # Its layers do not fit, so nothing is measured.
        ("Net", "other_width"),
    ],
)
def test_halves_of_two_machines_are_judged_as_the_models_themselves(both: Both, net: str, model: str, tmp_path: Path) -> None:
    first, second = record(both, tmp_path / "net.dump", net), tmp_path / "keras.dump"
    options: dict[str, Any] = {"image": IMAGE, "classes": CLASSES, "steps": STEPS}
    together = match.match(f"{TORCH}:{net}", f"{KERAS}:{model}", **options, processes=both)
    apart = match.match(str(first), f"{KERAS}:{model}", dump=second, processes=(UNUSED, both[1]))
    neither = match.match(str(first), str(second), processes=(UNUSED, UNUSED))
    assert rungs(apart) == rungs(neither) == rungs(together)
    assert neither.sentences == together.sentences and neither.lines == together.lines
    assert neither.versions == together.versions and "torch" in neither.versions[0]


def test_equal_arrays_are_stored_once(both: Both, tmp_path: Path) -> None:
    half = dumps.DumpedModel(record(both, tmp_path / "net.dump"))
    half.send({"measure": None})
    _, arrays = half.answer()
    assert (tmp_path / "net.dump").stat().st_size < sum(array.nbytes for array in arrays.values())


def test_a_dump_that_does_not_fit_is_refused_by_its_name(both: Both, tmp_path: Path) -> None:
    first = record(both, tmp_path / "net.dump")
    second = tmp_path / "keras.dump"
    match.match(str(first), f"{KERAS}:port", dump=second, processes=(UNUSED, both[1]))
    others = record(both, tmp_path / "other.dump", steps=3), record(both, tmp_path / "drawn.dump", "seeded")
    cases: list[tuple[tuple[str, str], dict[str, Any], list[str]]] = [
        ((str(second), str(first)), {}, [str(second), "tensorflow", "Swap"]),
        ((str(others[0]), str(second)), {}, ["--steps", "3", "2"]),
        ((str(others[1]), str(second)), {}, [str(second), "other weights"]),
        ((str(first), f"{KERAS}:port"), {"image": IMAGE}, [str(first), "--input"]),
        ((str(first), f"{KERAS}:port"), {"steps": 3}, [str(first), "--steps"]),
        ((str(first), str(second)), {"dump": tmp_path / "third.dump"}, ["--dump", str(second)]),
        ((f"{TORCH}:Net", f"{KERAS}:port"), {"dump": tmp_path / "third.dump"}, ["--dump", f"{TORCH}:Net"]),
        ((str(tmp_path / "none.dump"), f"{KERAS}:port"), {}, ["none.dump", "--dump"]),
    ]
    for models, options, names in cases:
        with refused(names=names):
            match.match(*models, **options, processes=(UNUSED, UNUSED))


def test_a_file_that_is_no_whole_dump_is_refused(both: Both, tmp_path: Path) -> None:
    whole = record(both, tmp_path / "net.dump").read_bytes()
    for number, content in enumerate(
        [b"", b"no dump", whole[: len(whole) // 2], whole.replace(b'"convtwins"', b'"contwinsv"')]
    ):
        path = tmp_path / f"bad{number}.dump"
        path.write_bytes(content)
        with refused(names=[str(path)], fix="--dump"):
            dumps.DumpedModel(path)
        with refused(SpecError, field="--dump", names=[str(path)]):
            dumps.check(path)  # it is not overwritten
    with refused(SpecError, field="--dump", received="net.safetensors", fix="net.dump"):
        dumps.check(Path("net.safetensors"))


def leaves(folder: Path, *, colour: bool = True) -> Path:
    """Photos of another size than the models take, in folders of four classes."""
    generator = np.random.default_rng(3)
    shape = (12, 12, 3) if colour else (12, 12)
    places = [f"{label}/{number}.png" for label in ("ash", "birch", "elm", "oak") for number in range(12)]
    return trees.write(folder, {place: generator.integers(0, 256, shape, np.uint8) for place in places})


def test_both_models_get_a_users_images_and_labels_and_a_dump_brings_them_along(both: Both, tmp_path: Path) -> None:
    folder = leaves(tmp_path / "leaves")
    first = record(both, tmp_path / "net.dump", data=str(folder))
    found = match.match(str(first), f"{KERAS}:port", processes=(UNUSED, both[1]))
    assert found.same, found.sentences
    assert found.requests[1].data_name == "leaves"
    other = match.match(f"{TORCH}:Net", f"{KERAS}:port", image=IMAGE, classes=CLASSES, steps=STEPS, processes=both)
    assert rungs(found) != rungs(other)  # other images, other rounding
    report = match.report(found, [])
    assert report.screen is not None and "images 8x8x3 of leaves" in " ".join(report.screen.subject)


def test_images_are_those_of_the_data_and_begin_again_at_their_end(tmp_path: Path) -> None:
    request = OpenRequest(model="", image=(12, 12, 3), classes=5, steps=4)
    stored = user_images.stored(request, str(leaves(tmp_path / "leaves")), tmp_path)
    pixels, labels = images(stored)
    assert pixels.shape == (16, 12, 12, 3) and pixels.min() >= 0.0 and pixels.max() <= 1.0 and {*labels} <= {*range(4)}
    # The test and validation parts of 48 images leave fewer than four batches.
    numbers = [np.rint(255.0 * images(stored, step)[0]).astype(np.uint8).tobytes() for step in range(4)]
    raw = images(stored.model_copy(update={"prepare": "my:prepare"}))[0]
    assert raw.dtype == np.uint8 and raw.tobytes() == numbers[0] and len({*numbers}) == 4


@pytest.mark.parametrize(
    ("image", "classes", "colour", "names"),
    [
        ((8, 12, 3), 5, True, ["8x12x3", "square"]),
        ((8, 8, 2), 5, True, ["8x8x2", "channels"]),
        ((8, 8, 1), 5, True, ["colour", "8x8x1"]),
        ((8, 8, 3), 3, True, ["4 classes", "--classes 3"]),
    ],
)
def test_data_that_models_cannot_take_is_refused(
    tmp_path: Path, image: tuple[int, int, int], classes: int, colour: bool, names: list[str]
) -> None:
    with refused(SpecError, field="--data", names=names):
        user_images.stored(OpenRequest(model="", image=image, classes=classes), str(leaves(tmp_path / "leaves")), tmp_path)
    assert not [*tmp_path.glob("*.safetensors")]


def test_grey_images_give_one_channel(tmp_path: Path) -> None:
    request = OpenRequest(model="", image=(8, 8, 1), classes=4)
    assert images(user_images.stored(request, str(leaves(tmp_path / "grey", colour=False)), tmp_path))[0].shape == (16, 8, 8, 1)


def test_swapped_models_are_known_by_what_their_modules_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "torch_one": "from torch import nn\nclass Net(nn.Module): ...\n",
        "keras_one": "import keras\ndef build(): ...\n",
    }
    trees.write(tmp_path, {f"{name}.py": text for name, text in modules.items()})
    monkeypatch.syspath_prepend(tmp_path)
    with refused(SpecError, names=["keras", "torch"], fix="match torch_one:Net keras_one:build"):
        match.match("keras_one:build", "torch_one:Net", image=IMAGE, classes=CLASSES, processes=(UNUSED, UNUSED))
    # A module that imports both may hold either.
    trees.write(tmp_path, {"keras_one.py": f"import torch\n{modules['keras_one']}"})
    with pytest.raises(AssertionError):  # it is asked
        match.match("keras_one:build", "torch_one:Net", image=IMAGE, classes=CLASSES, processes=(UNUSED, UNUSED))


class MadeUp:
    """A model whose answers are made up."""

    framework = "pytorch"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def send(self, request: Mapping[str, Any]) -> None:
        self.asked.append(dict(request))

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        number, request = len(self.asked), self.asked[-1]
        values = np.full((2, 3), float(number if "far" in request else 0))
        answer = {"far": {"weights as they are, images times 255": "it refuses these"}} if "measure" in request else {}
        return {"number": number, **answer}, {"a": values, "again": values.copy()}

    def give(self, arrays: Mapping[str, Array]) -> str:
        return "file"


def test_a_dump_gives_the_answers_that_it_was_made_of(tmp_path: Path) -> None:
    server, path, request = MadeUp(), tmp_path / "folder" / "net.dump", OpenRequest(model="net:Net", image=IMAGE, classes=5)
    recorder = dumps.AnswerRecorder(server, {"torch": "2.14.1", "torchvision": None})
    messages: list[dict[str, Any]] = [{"open": request.model_dump()}, {"measure": recorder.give({"w": np.ones(2)})}]
    for message in messages:
        recorder.send(message)
        recorder.answer()
    recorder.save(path, request)
    refused_pass = "weights as they are, images times 255"
    # Each other pass is asked for, for its layers and for its rounding.
    asked = [(each["far"], each["record"]) for each in server.asked[2:]]
    assert asked == [(words, far) for words in stress_inputs(request) if words != refused_pass for far in (False, True)]
    half = dumps.DumpedModel(path)
    assert (half.framework, half.versions["torch"], half.request(tmp_path)) == ("pytorch", "2.14.1", request)
    half.give({"w": np.ones(2)})
    for number, message in enumerate([*messages, *server.asked[2:]], 1):
        half.send(message)
        answer, arrays = half.answer()
        assert answer["number"] == number and {*arrays} == {"a", "again"}
        assert np.array_equal(arrays["a"], np.full((2, 3), float(number if number > 2 else 0)))
    half.give({"w": np.zeros(2)})
    half.send(messages[1])
    with refused(SpecError, names=[str(path), "other weights"]):
        half.answer()
    half.send({"far": refused_pass, "record": True})
    with refused(SpecError, names=[str(path), refused_pass]):
        half.answer()
