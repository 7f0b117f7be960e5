import numpy as np
import pytest

from common.models import architectures
from tests.twins import made, oracles
from tests.twins.adapters import Twin

OWN, PLAIN = "tests.twins.own_model", "tests.twins.own_plain_model"


@pytest.mark.parametrize("model", [OWN, PLAIN])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_users_model_gives_the_logits_of_its_architecture(twin: Twin, model: str, training: bool) -> None:
    architecture = architectures.resolve(model, 3, 12)
    split = made.dataset(architecture, train=5).train
    masks = made.masks(architecture, 5)
    logits = made.trainer(twin, architecture).logits(twin.batch(split.images, split.labels, masks), training=training)
    expected = oracles.Forward(architecture, made.values(architecture), split.images, masks, training=training).logits
    assert np.abs(logits - expected).max() < 1e-13


@pytest.mark.parametrize(("model", "by_hand"), [(OWN, True), (PLAIN, False)])
def test_a_users_builder_is_used_where_there_is_one(twin: Twin, model: str, by_hand: bool) -> None:
    built = twin.models.build(architectures.resolve(model, 3, 12), "float32")
    assert getattr(built, "built_by_hand", False) == by_hand


def test_a_users_model_is_summarised_like_the_suites_own(twin: Twin) -> None:
    summary = twin.models.summarize(architectures.resolve(OWN, 3, 8))
    assert summary["model"] == OWN
    assert [(layer["name"], layer["output_shape"], layer["values"]) for layer in summary["layers"]] == [
        ("conv", [4, 4, 5], 140),
        ("bn", [4, 4, 5], 20),
        ("pool", [5], 0),
        ("logits", [3], 18),
    ]
    assert (summary["values"], summary["trainable_values"]) == (178, 168)


def test_a_users_model_trains_in_replicas_as_it_does_in_one(twin: Twin) -> None:
    architecture = architectures.resolve(OWN, 4, 8)
    data = made.dataset(architecture, train=6)
    batch, losses = twin.batch(data.train.images, data.train.labels), {}
    for mode in ("serial", "data_parallel"):
        trainer = made.trainer(twin, architecture, data, mode=mode, batch_norm_statistics="synchronised")
        losses[mode] = trainer.fetch([trainer.train_step(batch, 6, 0.1)[0] for _ in range(3)])
    assert np.abs(losses["serial"] - losses["data_parallel"]).max() < 1e-12
    assert losses["serial"][2] < losses["serial"][0]
