"""The checks of `conformance`, on descriptions made by hand and on a twin of a package with planted defects.

tests/twins/test_contract.py asks the same checks of the suite's own twins.
"""

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.models import architectures
from common.spec import SpecError
from compare.cli.errors import FolderError, LaunchError
from compare.proof.differences import Arrays
from compare.running import code_digest, contestants, launch
from compare.running.twins import Twins
from compare.tools.conformance import conformance, interface, runs
from compare.tools.conformance.interface import FIELDS, description_faults
from compare.tools.conformance.trial import TwinUnderTest
from tests.parity.made_up import FakeTwins
from tests.support import comparisons, trees
from tests.support.refusals import refused

GOOD: dict[str, Any] = {
    "framework": "third",
    "versions": {"third": "1.0"},
    "devices": [{"name": "cpu", "kind": "cpu"}],
    "modes": {
        "serial": {
            "available": True, "reason": None, "max_replicas": 1, "resource": "device", "implementation": "one",
            "mechanism": "one", "batch_norm_statistics": ["per_replica"],
        }
    },
    "options": {
        "graph": {
            "values": ["jit"], "default": "jit", "help": "one",
            "sets": {"graph": {"jit": "compiled"}, "layout": {"jit": "NHWC"}},
        }
    },
    "supported": {"third": ["1", "2"]},
    "libraries": {},
    "inputs": {"workers": "threads"},
    "deterministic": False,
    "formats": [".npz"],
}  # fmt: skip

PACKAGE = """
import os, sys
import pytorch_impl.__main__ as twin
from common.processes import entry
from pytorch_impl import rendezvous, switches

def load_twin():
    loaded = twin.load_twin()
    described = loaded.describe
    object.__setattr__(loaded, "describe", lambda: {**described(), "framework": "planted"})
    exec(os.environ.get("PLANTED", ""), {"loaded": loaded})
    return loaded

if __name__ == "__main__":
    code = entry.main("planted", load_twin, rendezvous, switches)
    entry.exit_without_teardown(code)
"""
MOMENTUM = """
from pytorch_impl import optim
from torch import no_grad
def apply(self, gradients, learning_rate, step):
    with no_grad():
        for variable, gradient, buffer in zip(self._variables, gradients, self._buffers):
            buffer.mul_(self._settings.momentum).add_(gradient, alpha=1 - self._settings.momentum)
            variable.add_(buffer, alpha=-learning_rate)
optim.SGD.apply = apply
"""
PIXELS = """
from pytorch_impl import input
augment = input.augment
input.augment = lambda images, draws: augment(images, draws).flip(2)
"""
GRADIENTS = """
from pytorch_impl import optim
apply = optim.SGD.apply
def scaled(self, gradients, learning_rate, step):
    apply(self, [gradient * (1 + 1e-9) for gradient in gradients], learning_rate, step)
optim.SGD.apply = scaled
"""
EXIT_CODE = """
import sys
from common.processes import entry
entry.exit_without_teardown = lambda code: sys.exit(code and 1)
"""
OTHER_STATE = """
from pytorch_impl.parallel import Trainer
load_state = Trainer.load_state
def keeps_its_weights(self, values, step):
    own = {name: array.copy() for name, array in self.state().items() if name.startswith("weights/")}
    load_state(self, {**values, **own}, step)
Trainer.load_state = keeps_its_weights
"""
STREAMED = """
from pytorch_impl import input
reader = input.reader
def flipped(split, image_size):
    take = reader(split, image_size)
    return take if split.encoded is None else lambda ids: take(ids).flip(2)
input.reader = flipped
"""
MEAN = """
from pytorch_impl.parallel.data_parallel import DataParallel
exchange, described = DataParallel._exchange, loaded.describe
DataParallel._exchange = lambda self, gradients: [each / len(gradients) for each in exchange(self, gradients)]
def two_modes():
    found = described()
    return {**found, "modes": {name: found["modes"][name] for name in ("serial", "data_parallel")}}
object.__setattr__(loaded, "describe", two_modes)
"""
NO_SLOTS = """
from pytorch_impl.parallel import Trainer
from compare.running.twins import Twins
from tests.compare.twins import fake
Trainer.slots = lambda self: {"momentum_buffer": each for each in [dict()]}
"""


def faults(**changes: Any) -> list[str]:
    found = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        target = found
        for parent in parents:
            target = target[parent]
        if value is None:
            del target[leaf]
        else:
            target[leaf] = value
    return list(description_faults(found, "third"))


def test_a_whole_description_has_no_faults() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": None}, "describe has no versions of type dict"),
        ({"inputs": None}, "describe has no inputs of type dict"),
        ({"deterministic": "no"}, "describe has no deterministic of type bool. Received: 'no'"),
        ({"options__graph__sets": {"graph": {"jit": "compiled"}}}, "whose `sets` names layout. Received: ['graph']"),
        ({"framework": "fourth"}, "names another framework. Received: 'fourth', expected 'third'"),
        ({"versions": {"third": 1}}, "versions must name packages"),
        ({"devices": [{"name": "cpu"}]}, "devices must have a name and a kind"),
        ({"formats": ["npz"]}, "begin with a dot"),
        ({"modes__serial__mechanism": None}, "modes.serial lacks mechanism"),
        ({"modes__serial__reason": "broken"}, "must have a reason if it is not available, and only then"),
        ({"modes": {}}, "modes must have serial"),
        ({"modes__telepathy": {}}, "names 'telepathy', which is no mode"),
        ({"options__graph__help": None}, "options.graph lacks help"),
        ({"options__graph__default": "eager"}, "a default that is none of its values. Received: 'eager'"),
    ],
)
def test_each_fault_of_a_description_is_named(changes: dict[str, Any], words: str) -> None:
    assert any(words in fault for fault in faults(**changes))


def test_the_page_of_the_contract_lists_the_fields_that_the_check_asks_for() -> None:
    page = (launch.PROJECT_ROOT / "docs" / "a-new-twin.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `describe` \| JSON: (.*?)\.", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(FIELDS)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], TwinUnderTest]]:
    """A package with a twin that is PyTorch's but for a planted defect, on the path of its interpreter."""
    files = {
        "planted_impl/__init__.py": "",
        "planted_impl/__main__.py": PACKAGE,
        "planted-1.0.dist-info/METADATA": "Name: planted\nVersion: 1.0\n",
        "planted-1.0.dist-info/entry_points.txt": "[convtwins.twins]\nplanted = planted_impl\n",
    }
    place = str(trees.write(tmp_path / "site", files))
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([place, os.environ.get("PYTHONPATH", "")]))

    def planted(defect: str) -> TwinUnderTest:
        monkeypatch.setenv("PLANTED", defect)
        return TwinUnderTest(Twins(["planted"]), tmp_path / "out", model_steps={"simple_cnn": 3}, optimizers=("sgd",))

    return planted


def tried(trial: TwinUnderTest, check: str) -> list[str]:
    (made,) = conformance.conform(trial, [check])
    return made.faults


@pytest.mark.slow
def test_a_twin_of_a_package_is_described_and_trains_as_the_referee_does(plant: Callable[[str], TwinUnderTest]) -> None:
    trial = plant("")
    assert Twins.choose(["pytorch", "planted"], [], (), launch.FRAMEWORKS).names == ["pytorch", "planted"]
    assert tried(trial, "describe") == []
    assert tried(trial, "training") == []
    assert len({code_digest.compute(contestants.resolve([name]), "simple_cnn") for name in ("planted", "pytorch")}) == 2


@pytest.mark.parametrize(
    ("defect", "check", "words"),
    [
        (MOMENTUM, "training", "weights after one step differ from the referee"),
        pytest.param(PIXELS, "training", "trains on other pixels", marks=pytest.mark.slow),
        pytest.param(GRADIENTS, "single steps", "float64: 8 one step in float64: gradients differ", marks=pytest.mark.slow),
        pytest.param(EXIT_CODE, "bad input", "data without images must end with exit code 4", marks=pytest.mark.slow),
        pytest.param(OTHER_STATE, "runs", "goes on from its checkpoint", marks=pytest.mark.slow),
        pytest.param(STREAMED, "input", "loading-streaming gives other pixels", marks=pytest.mark.slow),
        pytest.param(MEAN, "modes", "gradients", marks=pytest.mark.slow),
        pytest.param(NO_SLOTS, "single steps", "slots must be buffer", marks=pytest.mark.slow),
    ],
    ids=["momentum", "pixels", "gradients", "exit code", "state", "streamed", "mean", "slots"],
)
def test_a_planted_defect_is_named(plant: Callable[[str], TwinUnderTest], defect: str, check: str, words: str) -> None:
    found = tried(plant(defect), check)
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_run_that_makes_no_checkpoint_is_a_fault(exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is resumed was not tried, and that must not look like success."""
    trees.write(tmp_path, {"forgetful.py": f"import sys; print('All done.'); sys.exit({exit_code})"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(launch.FRAMEWORKS, "forgetful", "forgetful")  # the table of twins is what `launch` is asked with
    (fault,) = runs.resume_faults(
        TwinUnderTest(Twins(["forgetful"]), tmp_path), spec.build({}), comparisons.good(comparisons.row("pytorch"), 1.0)
    )
    for part in ("could not be tried", "checkpoint.safetensors after each epoch", f"exit code {exit_code}", "All done."):
        assert part in fault


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> FakeTwins:
    """A twin that only pretends. Its single steps are the referee's."""
    fake = FakeTwins()
    fake.steps_by_referee = ["float64"]
    # Planted twins: a recording of the referee is what the twin would write.
    monkeypatch.setattr(launch, "describe", fake.describe)
    monkeypatch.setattr(launch, "call_all", fake.call_each)
    return fake


def single_step_faults(folder: Path) -> list[str]:
    return tried(TwinUnderTest(Twins(["pytorch"]), folder, optimizers=("sgd",), precisions=("float64",)), "single steps")


@pytest.mark.slow
def test_right_single_steps_have_no_faults(twins: FakeTwins, tmp_path: Path) -> None:
    assert single_step_faults(tmp_path) == []


@pytest.mark.slow
def test_gradients_that_are_wrong_everywhere_are_no_truth_of_their_own(twins: FakeTwins, tmp_path: Path) -> None:
    """They repeat themselves from any state. Only another training shows that they are wrong."""

    def scale(arrays: Arrays) -> None:
        for name in arrays:
            if "/slots/" in name and arrays[name].dtype == "float64":
                arrays[name] = arrays[name] * (1 + 1e-9)

    twins.changes["pytorch", "steps"] = scale
    found = single_step_faults(tmp_path)
    assert found[0].startswith("sgd, float64: 8 one step in float64: gradients differ by 1.0e-09, tolerance"), found
    assert all(fault.startswith("sgd, float64: ") for fault in found)


class FakeTwin(TwinUnderTest):
    """A twin that writes what `answer` returns of a command's words. None: it ends well and writes nothing."""

    answer: Callable[[Sequence[str | Path]], Any]

    @cached_property
    def description(self) -> dict[str, Any]:
        return GOOD

    def call_all(self, commands: Sequence[Sequence[str | Path]]) -> list[tuple[int, str]]:
        for words in commands:
            if (answer := self.answer(words)) is not None:
                Path(words[words.index("--out") + 1]).write_text(json.dumps(answer))
        return [(0, "")] * len(commands)


def fake_twin(out: Path, answer: Callable[[Sequence[str | Path]], Any]) -> FakeTwin:
    trial = FakeTwin(Twins(["third"]), out, model_steps={"simple_cnn": 3})
    trial.answer = answer
    return trial


def test_files_of_an_earlier_trial_are_not_judged(tmp_path: Path) -> None:
    """A twin that ends well and writes nothing fails in a folder where it once wrote all."""
    answers: list[Any] = [{"values": 1, "trainable_values": 1, "layers": []}, None]
    for fault in ("has 1 values", "No such file"):
        trial = fake_twin(conformance.prepare_trial_folder(tmp_path / "out"), lambda words: answers.pop(0))
        assert fault in tried(trial, "models")[0]


@pytest.mark.parametrize(
    ("layer", "change", "expected"),
    [
        (None, {}, None),
        ("conv1", {"output_shape": [16, 16, 32]}, "{'output_shape': [32, 32, 32], 'values': 896}"),
        ("dense", {"values": 10}, ""),
    ],
    ids=["none", "strides", "no kernel"],
)
def test_a_layer_that_is_built_otherwise_is_named(
    layer: str | None, change: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    """Planted in the summaries that a twin writes of the models."""

    def summary(words: Sequence[str | Path]) -> dict[str, Any]:
        architecture = architectures.resolve(spec.from_json(Path(words[1]).read_bytes()).model, 10, 32)
        parameters = architecture.parameters()
        size = architecture.image_size
        layers = [
            {
                "name": name,
                "output_shape": list(shape),
                "values": sum(each.size for each in parameters if each.name.rpartition(".")[0] == name),
            }
            for name, shape in interface.layer_shapes(architecture.layers, (size, size, 3))
        ]
        totals = [sum(each.size for each in parameters if each.trainable or not only) for only in (False, True)]
        built = [{**each, **(change if each["name"] == layer else {})} for each in layers]
        return {"values": totals[0], "trainable_values": totals[1], "layers": built}

    faults = tried(fake_twin(tmp_path, summary), "models")
    if expected is None:
        assert faults == []
    else:
        (fault,) = faults
        assert fault.startswith(f"simple_cnn, layer {layer} ") and expected in fault


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    trees.write(tmp_path, {"thesis.tex": "all of it"})
    with refused(FolderError, names=("thesis.tex",)):
        conformance.prepare_trial_folder(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_twin_that_no_package_brings_is_refused_by_name(plant: Callable[[str], TwinUnderTest]) -> None:
    with refused(SpecError, received="plantd", fix="planted"):
        Twins.choose(["plantd"], [], (), launch.FRAMEWORKS)
    other = Path(os.path.realpath(sys.executable))
    twins = Twins.choose(None, [f"third=third@{other}"], (), launch.FRAMEWORKS)
    with refused(LaunchError, names=("no twin third", "entry point third")):
        twins.describe("third")


def test_the_report_says_what_is_missing() -> None:
    made = [conformance.Check("describe", []), conformance.Check("training", ["sgd: losses differ"])]
    report = conformance.report("third", made)
    assert report.exit_code == 1 and json.dumps(report.values)
    assert report.findings[0][1] == ["third does not conform: 1 of 2 checks passed."]
    assert report.findings[1][1] == ["training: sgd: losses differ."]
    assert conformance.report("third", made[:1]).exit_code == 0
