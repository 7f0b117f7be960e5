"""One set of trained weights in both frameworks: converted through each one's own files, and scored the same to the image."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common import architectures, datasets, scores, spec, trained, weights
from compare import asking, convert, launch

SIZE_PX, CLASSES, IMAGES = 32, 10, 96


def learned(path: Path, model: str, framework: str) -> Path:
    """Weights and statistics of which no two are alike, as a long training would leave them."""
    architecture = architectures.resolve(model, CLASSES, SIZE_PX)
    generator = np.random.default_rng(7)
    values = weights.initial(architecture, 7)
    for name, array in values.items():
        if name.endswith(("gamma", "variance")):
            values[name] = generator.uniform(0.5, 1.5, array.shape)
        elif not name.endswith("kernel"):
            values[name] = generator.normal(0.0, 0.3, array.shape)
    card = trained.Card(
        framework=framework, versions={}, model=model, class_names=tuple("0123456789"), image_size=SIZE_PX,
        pixel_mean=(0.3, 0.3, 0.3), pixel_std=(0.4, 0.4, 0.4), precision="float32", spec_hash="", data_hash="", seed=0, epoch=1,
        validation=None,
    )  # fmt: skip
    rounded = {name: array.astype(np.float32) for name, array in values.items()}
    trained.save(card, rounded, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("model", spec.MODELS)
def test_a_checkpoint_of_one_framework_scores_the_same_to_the_image_in_the_other(model: str, tmp_path: Path) -> None:
    first, second = launch.FRAMEWORKS
    suffixes = {framework: launch.describe(framework)["formats"][0] for framework in launch.FRAMEWORKS}
    checkpoint = learned(tmp_path / "a.safetensors", model, first)
    through = [checkpoint, tmp_path / f"b{suffixes[first]}", tmp_path / f"c{suffixes[second]}", tmp_path / "d.safetensors"]
    for source, target in pairwise(through):
        convert.convert(source, target)
    before, after = trained.load(checkpoint), trained.load(through[-1])
    assert before.card == after.card
    assert all(np.array_equal(before.weights[name], after.weights[name]) for name in before.weights)
    test = datasets.load(spec.build({"data": {"image_size": SIZE_PX}}).data, seed=0, cache_dir=str(tmp_path / "cache")).test
    images, labels = np.asarray(test.images[:IMAGES]), test.labels[:IMAGES]
    made = [asking.logits(name, path, after, images) for name, path in ((first, checkpoint), (second, through[-1]))]
    found = scores.agreement(labels, *made)
    assert len(set(scores.predictions(made[0]).tolist())) > 1  # else the case shows nothing
    assert found.labelled_differently == 0
    assert found.largest_difference < 1e-4
    assert scores.score(labels, made[0]).confusion == scores.score(labels, made[1]).confusion
