"""Files of trained models: what is written is read back, and nothing else is taken for one."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from common.artifacts import checked_arrays, trained
from common.artifacts.trained import Card
from common.models import architectures, weights
from common.models.weights import WeightsError
from tests.support.refusals import refused

OWN = "tests.twins.own_plain_model"


def card(**fields: Any) -> Card:
    values = {
        "framework": "made up", "versions": {"numpy": "2"}, "model": "simple_cnn", "class_names": ("a", "b"), "image_size": 32,
        "pixel_mean": (0.1, 0.2, 0.3), "pixel_std": (0.5, 0.6, 0.7), "precision": "float32", "spec_hash": "s", "data_hash": "d",
        "seed": 3, "epoch": 2, "validation": None,
    }  # fmt: skip
    return Card.model_validate(values | fields)


def written(path: Path, **fields: Any) -> Path:
    made = card(**fields)
    architecture = trained.architecture_of(made, path, OWN)
    trained.save(made, weights.initial(architecture, 1), path)
    return path


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    found = trained.load(written(tmp_path / "a.safetensors"))
    assert found.card == card()
    assert found.architecture == architectures.resolve("simple_cnn", 2, 32)
    assert found.card.scaling.mean == (0.1, 0.2, 0.3)


def test_a_model_of_another_structure_is_loaded_so_and_a_card_without_one_is_the_models_own(tmp_path: Path) -> None:
    structure = {"width": 0.5, "depth": 2.0, "dropout": 0.1}
    found = trained.load(written(tmp_path / "a.safetensors", **structure))
    assert found.architecture == architectures.resolve("simple_cnn", 2, 32, **structure)
    earlier = {name: value for name, value in card().model_dump().items() if name not in structure}
    assert Card.model_validate(earlier) == card()
    expected = weights.initial(found.architecture, 1)
    assert found.weights.keys() == expected.keys()
    assert all((found.weights[name] == expected[name]).all() for name in expected)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with refused(WeightsError, names=["a.safetensors", "not as this suite wrote it"]):
        trained.load(path)


def test_files_that_are_no_trained_model_are_refused_by_name(tmp_path: Path) -> None:
    for name, content in {"missing": None, "text": b"no weights", "empty": b"", "pickle": b"\x80\x04N."}.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with refused(WeightsError, fix="best.safetensors", names=[name, "no file" if content is None else "not a whole"]):
            trained.load(path)
    with refused(WeightsError, names=[tmp_path, "no plain file"]):
        trained.load(tmp_path)
    foreign = tmp_path / "foreign"
    safetensors.numpy.save_file({"x": np.zeros(3)}, foreign)
    with refused(WeightsError, names=[foreign]):
        trained.load(foreign)
    other = tmp_path / "other"
    checked_arrays.write(other, {"version": "1", "progress": "{}"}, {"x": np.zeros(3)})
    with refused(WeightsError, names=[other, "not a whole card"]):
        trained.load(other)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"pixel_std": [0.0, 1.0, 1.0]}, ["whole card", "1 faults"]),
        ({"image_size": 100_000}, ["whole card", "1 faults"]),
        ({"class_names": []}, ["whole card", "1 faults"]),
        ({"framework": "torch\x1b[2J"}, ["whole card", "1 faults"]),
        ({"model": "package.module\x1b[2J"}, ["whole card", "1 faults"]),
        ({"image_size": 16}, ["simple_cnn", "data.image_size", 16]),
        ({"class_names": ["a", "b", "c"]}, ["simple_cnn", "logits.bias"]),
    ],
)
def test_a_card_that_does_not_fit_is_refused(fields: dict[str, Any], names: list[object], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = weights.initial(architectures.resolve("simple_cnn", 2, 32), 1)
    text = json.dumps(json.loads(card().model_dump_json()) | fields)
    checked_arrays.write(path, {"version": "1", "card": text}, values)
    with refused(WeightsError, names=["a.safetensors", *names]):
        trained.load(path)


def test_a_module_that_only_a_file_names_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.safetensors", model=OWN, image_size=12)
    monkeypatch.delitem(sys.modules, OWN)
    with refused(WeightsError, names=[f"--model {OWN}"]):
        trained.load(path)
    assert OWN not in sys.modules
    assert trained.load(path, OWN).card.model == OWN
    assert OWN in sys.modules
