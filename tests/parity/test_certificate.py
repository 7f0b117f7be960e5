"""`python -m compare parity` as a user types it, with twins that only pretend."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.machine import machine
from compare.proof import ladder
from compare.proof.certificate import Proof
from compare.proof.differences import Arrays
from compare.running import launch, matrix, run_settings
from compare.running.twins import Twins
from tests.parity.made_up import FakeTwins
from tests.support import trees
from tests.support.command_line import convtwins
from tests.support.refusals import check_ended

QUICK = ("--steps", "5", "--no-remember")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, to see what stays."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # which is asked for once
    return folder


def parity(*arguments: str) -> Any:
    return convtwins("parity", *QUICK, *arguments)


def printed(done: Any) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(done.stdout, parse_constant=refuse)


def wrong_gradient(arrays: Arrays) -> None:
    arrays["gradient/logits.bias"] = arrays["gradient/logits.bias"] + 1.0


def test_json_holds_for_each_rung_what_was_promised(twins: FakeTwins) -> None:
    done = parity("--model", "simple_cnn,tests.parity.probe", "--json")
    assert done.exit_code == 0, done.output
    rungs = printed(done)["rungs"]
    assert printed(done)["verdict"] == "proved"
    promised = {"name", "model", "optimizer", "precision", "steps", "max_relative_difference", "tolerance", "status"}
    assert all(promised <= rung.keys() for rung in rungs)
    assert {(rung["model"], rung["optimizer"]) for rung in rungs} == {
        (model, optimizer) for model in ("simple_cnn", "tests.parity.probe") for optimizer in ("sgd", "adam")
    }
    losses = next(rung for rung in rungs if rung["name"] == "5 losses")
    assert (losses["precision"], losses["steps"], losses["tolerance"], losses["status"]) == ("float64", 5, 1e-12, "passed")


def test_the_optimizers_and_the_augmentation_are_those_of_the_bar(twins: FakeTwins) -> None:
    parity("--modes", "serial")
    optimizers = {(what.optimizer.name, what.optimizer.learning_rate, what.optimizer.momentum) for _, what in twins.calls}
    assert optimizers == {("sgd", 0.05, 0.9), ("adam", 1e-3, 0.9)}
    assert all(what.augmentation.horizontal_flip and what.augmentation.shift_px for _, what in twins.calls)


def test_a_failed_rung_is_exit_code_1_and_named_first(twins: FakeTwins) -> None:
    twins.changes["tensorflow", "serial"] = wrong_gradient
    for form in ("", "--full", "--json"):
        done = parity("--optimizer", "sgd", "--modes", "serial", *filter(None, [form]))
        assert done.exit_code == 1
        assert "simple_cnn" in done.stdout and "1 of 12 checks failed, first: gradients (" in " ".join(done.stdout.split())
    assert [rung["name"] for rung in printed(done)["rungs"] if rung["status"] == "failed"] == ["3 gradients"]


def test_one_failed_proof_of_several_is_exit_code_1(twins: FakeTwins) -> None:
    def only_adam(arrays: Arrays) -> None:
        if twins.calls[-1][1].optimizer.name == "adam":
            wrong_gradient(arrays)

    twins.changes["pytorch", "serial"] = only_adam
    done = parity("--modes", "serial", "--json")
    assert (done.exit_code, printed(done)["verdict"]) == (1, "not proved")
    assert {rung["optimizer"] for rung in printed(done)["rungs"] if rung["status"] == "failed"} == {"adam"}


def test_an_infinite_difference_is_null_in_json(twins: FakeTwins) -> None:
    def broken(arrays: Arrays) -> None:
        arrays["loss"] = np.full_like(arrays["loss"], np.nan)

    twins.changes["tensorflow", "serial"] = broken
    done = parity("--optimizer", "sgd", "--modes", "serial", "--json")
    losses = next(rung for rung in printed(done)["rungs"] if rung["name"] == "5 losses")
    assert (losses["max_relative_difference"], losses["status"]) == (None, "failed")


def test_the_table_has_a_line_for_each_rung_with_difference_step_tolerance_and_reason(twins: FakeTwins, tmp_path: Path) -> None:
    done = parity("--optimizer", "sgd", "--out", str(out := tmp_path / "kept"))
    assert done.exit_code == 0
    heading, _, *lines = (out / "tables" / "rungs.md").read_text().splitlines()[2:]
    assert heading == "| check | model | optimizer | largest difference | step | tolerance | status | reason |"
    losses = next(line for line in lines if line.startswith("| 5 losses"))
    assert losses == (
        "| 5 losses | simple\\_cnn | sgd | 0.0e+00 | 1 of 5 | 1.0e-12 | passed | rounding of float64 (loss from 1.97 to 1.32) |"
    )
    assert any(line.startswith("| 6 data\\_parallel against serial, tensorflow") for line in lines)
    assert {path.name for path in out.glob("parity.*")} == {"parity.md", "parity.html", "parity.json"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "simple_cn"], {"field": "model", "received": "'simple_cn'", "fix": "simple_cnn"}),
        (["--model", ""], {"field": "--model", "fix": "mini_xception"}),
        (["--model", "simple_cnn,simple_cnn"], {"field": "--model", "received": "simple_cnn"}),
        (["--model", "tests.parity.nowhere"], {"field": "tests.parity.nowhere"}),
        (["--model", "tests.parity.settings"], {"names": ["architecture(num_classes, image_size)"]}),
        (["--optimizer", "adamw"], {"field": "--optimizer", "received": "'adamw'", "fix": ["sgd", "adam"]}),
        (["--optimizer", ","], {"field": "--optimizer", "fix": ["sgd", "adam"]}),
        (["--precision", "float16"], {"field": "--precision", "received": "'float16'", "fix": ["float64", "float32"]}),
        (["--modes", "ring"], {"field": "--modes", "received": "'ring'", "fix": "data_parallel"}),
        (["--frameworks", "pytorch,jax"], {"field": "--frameworks", "received": "'jax'", "fix": "tensorflow"}),
        (["--frameworks", "pytorch,pytorch"], {"field": "--frameworks", "received": "pytorch"}),
        (
            ["--frameworks", "pytorch", "--modes", "serial"],
            {"names": ["one framework alone", "--frameworks pytorch", "--modes serial"], "fix": "Name two frameworks"},
        ),
        (["--set", "part=input"], {"received": "part input", "fix": "Use part=training."}),
        (["--set", "optimiser.name=sgd"], {"names": ["optimiser"]}),
        (
            ["--model", "mini_xception", "--image-size", "64"],
            {"field": "data.image_size", "names": ["32", "mini_xception", "64"]},
        ),
        (["--steps", "0"], {"names": ["--steps"]}),
        (["--replicas", "1"], {"names": ["--replicas"]}),
    ],
)
def test_a_wrong_word_is_exit_code_2_and_says_what_to_use(
    twins: FakeTwins, arguments: list[str], parts: dict[str, Any]
) -> None:
    done = parity(*arguments)
    check_ended(done, **parts)
    assert done.stdout == "" and not twins.calls


def test_data_that_is_not_there_is_exit_code_4(twins: FakeTwins, tmp_path: Path) -> None:
    done = parity("--data", str(tmp_path / "nowhere.tar"))
    check_ended(done, exit_code=4, names=["nowhere.tar"])


def test_a_twin_that_dies_is_exit_code_1_and_named(twins: FakeTwins) -> None:
    twins.code = 1
    done = parity()
    check_ended(done, exit_code=1, names=["pytorch", "serial and 2 more", "exit code 1", "--out DIR"])
    assert done.stdout == ""


def test_a_temporary_folder_that_is_full_is_named(twins: FakeTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.code = 1
    monkeypatch.setattr(launch, "is_full", lambda folder: True)  # no test fills a disk
    done = parity()
    check_ended(done, exit_code=1, names=["exit code 1", "full", "--out DIR"])
    assert re.search(r"\(exit code 1; .*cvtw-.*\)", done.stderr)


@pytest.mark.parametrize("code", [0, 1])
def test_nothing_stays_in_the_temporary_folder(twins: FakeTwins, temporary: Path, code: int) -> None:
    twins.code = code
    parity("--modes", "serial")
    assert list(temporary.iterdir()) == []


def test_out_keeps_specs_recordings_and_logs(twins: FakeTwins, tmp_path: Path) -> None:
    parity("--optimizer", "sgd", "--modes", "serial", "--out", str(tmp_path / "kept"))
    kept = {path.name for path in (tmp_path / "kept" / "simple_cnn" / "sgd").iterdir()}
    assert {name for name in kept if not name.startswith("single-steps")} == {
        f"serial-{framework}.{suffix}" for framework in ("pytorch", "tensorflow") for suffix in ("json", "safetensors", "log")
    }


def test_progress_goes_to_stderr_alone(twins: FakeTwins) -> None:
    done = parity("--optimizer", "sgd", "--json")
    assert "process 1 of 6: pytorch records serial and 2 more of simple_cnn, sgd" in done.stderr
    assert done.stderr.index("rungs 1 to 7") < done.stderr.index("rung 8 in float64")
    assert done.stdout.startswith("{")


RUN = {
    "model": "simple_cnn", "global_batch_size": 32, "epochs": 3, "accumulation": 2, "input": "workers", "workers": 1,
    "communication": {"bucket_mib": 1.0}, "schedule": {"name": "cosine"}, "mode": "data_parallel", "replicas": 2, "cores": 2,
}  # fmt: skip


def _proofs_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def prove(request: ladder.ProofRequest, **_: Any) -> Proof:
        asked.append((request.timed_spec, request.twins.names, list(request.modes), request.replicas, dict(request.runs)))
        return Proof(rungs=[], seconds=0.0)

    monkeypatch.setattr(ladder, "prove", prove)  # what two commands ask of it is compared
    return asked


@pytest.mark.parametrize("words", [(), ("--set", "optimizer.learning_rate=0.2", "--set", "epochs=5")])
def test_a_spec_file_is_proved_as_run_times_it(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)  # a machine may have one
    path = trees.write(tmp_path, {"run.yaml": RUN}) / "run.yaml"
    asked = _proofs_asked_for(monkeypatch)
    convtwins("parity", "--spec", path, *words)
    settings = run_settings.settings(None, path, {}, list(words[1::2]))
    compared = Twins(["pytorch", "tensorflow"])
    rows = matrix.check_rows(
        settings.build_rows(compared.contestants),
        {name: twins.describe(name) for name in compared.names},
        compared.contestants,
    )
    ladder.prove_rows(rows, compared, replicas=settings.replicas)
    assert len(asked) == 2 and asked[0] == asked[1]
    _, _, modes, _, timed = asked[0]
    assert modes == ["serial", "data_parallel"]
    run = timed["tensorflow"]
    assert (run.epochs, run.accumulation, run.input, run.workers) == (5 if words else 3, 2, "workers", 1)
    assert (run.communication.bucket_mib, run.schedule.name, run.global_batch_size) == (1.0, "cosine", 32)


def test_a_preset_is_proved_as_run_times_it(twins: FakeTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _proofs_asked_for(monkeypatch)
    convtwins("parity", "--preset", "digits")
    ((timed, _, modes, replicas, runs),) = asked
    assert (timed.global_batch_size, modes, replicas) == (64, ["serial", "data_parallel", "multi_process"], 2)
    assert runs.keys() == {"pytorch", "tensorflow"}


@pytest.mark.parametrize("more", [("--model", "resnet18"), ("--seed", "1"), ("--precision", "float32")])
def test_what_a_spec_file_says_is_not_said_twice(twins: FakeTwins, tmp_path: Path, more: tuple[str, ...]) -> None:
    path = trees.write(tmp_path, {"run.yaml": RUN}) / "run.yaml"
    done = convtwins("parity", "--spec", path, *more)
    check_ended(done, names=[f"Received also: {more[0]}"], fix="--set")
