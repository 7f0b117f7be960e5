"""One trained model in both frameworks: converted through each one's own files, and scored the same to the image."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common import spec
from common.artifacts import results, trained
from common.data import sources
from common.spec import Spec
from common.training import scores
from compare.running import launch, twin_client
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from compare.tools.evaluation import convert


def settings(model: str) -> Spec:
    """Long enough for the running statistics of BatchNorm to be of use: labels are not all the same."""
    return spec.build(
        {
            "model": model,
            "data": {"image_size": 32, "limit": 300},
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "epochs": 6,
            "global_batch_size": 32,
            "best_epoch": {"keep": True},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "writer"), [("simple_cnn", 0), ("simple_cnn", 1), ("mini_xception", 1), ("resnet18", 0)])
def test_a_checkpoint_of_one_framework_scores_the_same_to_the_image_in_the_other(
    model: str, writer: int, tmp_path: Path
) -> None:
    first, second = list(launch.FRAMEWORKS)[:: -1 if writer else 1]
    wanted, spec_file = settings(model), tmp_path / "spec.json"
    spec_file.write_text(wanted.to_json())
    assert (
        launch.call(Contestant.plain(first), ["run", str(spec_file), "--out", str(tmp_path / "run")], log=tmp_path / "log.txt")
        == 0
    )
    twins = Twins(launch.FRAMEWORKS)
    suffixes = {framework: twins.describe(framework)["formats"][0] for framework in launch.FRAMEWORKS}
    checkpoint = tmp_path / "run" / results.BEST_FILE
    through = [checkpoint, tmp_path / f"b{suffixes[first]}", tmp_path / f"c{suffixes[second]}", tmp_path / "d.safetensors"]
    for source, target in pairwise(through):
        convert.convert(source, target)
    before, after = trained.load(checkpoint), trained.load(through[-1])
    assert before.card == after.card and before.card.framework == first
    assert all(np.array_equal(before.weights[name], after.weights[name]) for name in before.weights)
    test = sources.load(wanted.data, seed=wanted.split_seed, cache_dir=None).test
    images = np.asarray(test.images)
    made = [
        twin_client.logits(Contestant.plain(name), path, after, images)
        for name, path in ((first, checkpoint), (second, through[-1]))
    ]
    assert len(set(scores.predictions(made[0]).tolist())) > 3  # else the case shows nothing
    found = scores.agreement(test.labels, *made)
    assert found.labelled_differently == 0 and found.largest_difference < 1e-4
    assert scores.score(test.labels, made[0]).confusion == scores.score(test.labels, made[1]).confusion
