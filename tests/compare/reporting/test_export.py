import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from compare.results import store
from tests.support import comparisons
from tests.support.command_line import convtwins
from tests.support.refusals import check_ended


def records(path: Path) -> Iterator[bytes]:
    """The records of an event file: length, its check sum, content, its check sum."""
    from tensorboardX.crc32c import crc32c

    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        content = data[12 : 12 + length]
        for part, written in ((data[:8], data[8:12]), (content, data[12 + length : 16 + length])):
            value = crc32c(part)
            masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack("<I", written) == (masked,)
        yield content
        data = data[16 + length :]


@pytest.mark.skipif(not find_spec("tensorboardX"), reason="tensorboardX is not installed")
def test_tensorboard_reads_back_every_epoch_of_every_run(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.troubled(), tmp_path / "a")
    done = convtwins("export", a, "--to", "tensorboard", "--out", tmp_path / "out").succeeded()
    assert done.stdout.startswith("6 runs ") and done.stdout.endswith(f"tensorboard --logdir {tmp_path / 'out'}\n")
    assert not {"tensorflow", "torch"} & sys.modules.keys()
    from tensorboardX.proto.event_pb2 import Event  # not before: it would bring torch

    for row_id, repeats in store.read(a).runs.items():
        for repeat, run in repeats.items():
            (file,) = (tmp_path / "out" / f"{row_id}-r{repeat}").iterdir()
            read = {
                (value.tag, event.step): value.simple_value
                for event in map(Event.FromString, records(file))
                for value in event.summary.value
                if not value.HasField("metadata")
            }
            expected: dict[tuple[str, int], float] = {}
            for epoch in run.epochs:
                assert epoch.train and epoch.validation
                for split, scores in (("train", epoch.train), ("validation", epoch.validation)):
                    expected[f"{split}/loss", epoch.epoch] = scores.loss
                    expected[f"{split}/accuracy", epoch.epoch] = scores.accuracy
                expected["learning_rate", epoch.epoch] = epoch.learning_rate
                expected["seconds_per_epoch", epoch.epoch] = epoch.seconds
                expected["images_per_second", epoch.epoch] = epoch.images_per_second
            if run.test:
                expected["test/loss", 2], expected["test/accuracy", 2] = run.test.loss, run.test.accuracy
            assert read == pytest.approx(expected)


@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow does with SQLAlchemy
def test_mlflow_reads_back_params_metrics_and_how_runs_ended(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    a = comparisons.stored_in(comparisons.troubled(), tmp_path / "a")
    convtwins("export", a, "--to", "mlflow", "--out", tmp_path / "out").succeeded()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "simple_cnn on digits")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 6
    good, killed = runs["pytorch-serial-1-r0"], runs["pytorch-multi_process-2-r0"]
    assert (good.info.status, killed.info.status, killed.data.tags["status"]) == ("FINISHED", "FAILED", "killed")
    assert good.data.params["optimizer.name"] == "sgd" and good.data.params["mode"] == "serial"
    history = client.get_metric_history(good.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
    assert good.data.metrics["test/accuracy"] == 0.7


@pytest.mark.parametrize(("to", "module"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")])
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as Python notes what cannot be imported
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "a")
    done = convtwins("export", folder, "--to", to, "--out", tmp_path / "out")
    check_ended(done, field=f"--to {to}", names=[module, "pip install -r requirements-tracking.txt"])


def test_another_tool_and_a_folder_that_is_not_empty_are_refused(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.repeated(1), tmp_path / "a")
    unknown = convtwins("export", a, "--to", "wandb", "--out", tmp_path / "out")
    check_ended(unknown, field="--to", received="'wandb'", fix=["tensorboard", "mlflow"])
    check_ended(convtwins("export", a, "--to", "tensorboard", "--out", a), names=[a, "empty"])
