"""Digits, splits, limits and names: what `load` promises for every source."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.data.dataset import LabeledExamples
from common.data.preprocessing import scaling
from common.data.sources import DataRefused, load, splits
from common.spec import Data
from tests.support.refusals import refused

DIGITS_OF_SEED_0 = "d0335ed2b84b36156dd21a59f7a1ba47543b4db8e300442693bc6962b444ea04"
DRAW_OF_SEED_7 = [2, 7, 8, 11, 13, 17]


def test_digits_come_as_32_pixel_rgb_divided_70_20_10():
    dataset = load(Data(), seed=0)
    assert (dataset.name, dataset.image_size, len(dataset.class_names)) == ("digits", 32, 10)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (1258, 359, 180)
    for split in (dataset.train, dataset.validation, dataset.test):
        assert split.images.shape == (len(split), 32, 32, 3) and split.images.dtype == np.uint8
        assert split.labels.shape == (len(split),) and split.labels.dtype == np.int64
        assert not split.images.flags.writeable and not split.labels.flags.writeable
        assert (split.images.min(), split.images.max()) == (0, 255)


def test_a_digit_is_its_8_by_8_values_as_grey_squares():
    from sklearn.datasets import load_digits

    values = load_digits().images
    dataset = load(Data(limit=40), seed=3)
    for image in dataset.train.images:
        small = image[::4, ::4]
        assert np.array_equal(image, small.repeat(4, axis=0).repeat(4, axis=1))
        assert (small == small[..., :1]).all()
        # 0..16 to 0..255, rounded
        assert (np.floor(values * 255 / 16 + 0.5) == small[..., 0]).all(axis=(1, 2)).any()


def test_the_same_seed_gives_the_same_data_on_every_machine():
    assert load(Data(), seed=0).content_hash == DIGITS_OF_SEED_0
    assert splits.draw(np.repeat([0, 1], 10), 6, seed=7, purpose="test").tolist() == DRAW_OF_SEED_7


def test_another_seed_limit_or_size_gives_other_data():
    hashes = [
        load(data, seed=seed).content_hash
        for data, seed in ((Data(), 0), (Data(), 1), (Data(limit=100), 0), (Data(limit=101), 0), (Data(image_size=16), 0))
    ]
    assert len(set(hashes)) == len(hashes)


def test_each_class_keeps_its_share_in_every_split():
    dataset = load(Data(), seed=0)
    counts = [np.bincount(split.labels, minlength=10) for split in (dataset.train, dataset.validation, dataset.test)]
    whole = sum(counts)
    for count, share in zip(counts, (0.7, 0.2, 0.1), strict=True):
        assert (np.abs(count - whole * share) < 2).all()


def test_a_limit_keeps_so_many_training_examples_and_shrinks_the_others_alike():
    dataset = load(Data(limit=126), seed=0)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (126, 36, 18)
    assert np.bincount(dataset.train.labels, minlength=10).min() >= 12
    assert "limit 126 keeps 126 of 1,258 train" in dataset.notes[-1]


def test_a_limit_beyond_the_data_keeps_all_and_says_so():
    dataset = load(Data(limit=5000), seed=0)
    assert len(dataset.train) == 1258
    assert "limit 5,000" in dataset.notes[-1] and "all 1,258" in dataset.notes[-1]


def test_digits_are_resized_if_a_size_is_given():
    dataset = load(Data(image_size=48, limit=10), seed=0)
    assert dataset.train.images.shape == (10, 48, 48, 3) and dataset.image_size == 48


@pytest.mark.parametrize(("received", "meant"), [("digit", "digits"), ("cifar-10", "cifar10")])
def test_an_unknown_name_is_refused_with_the_nearest_one(received: str, meant: str):
    with refused(DataRefused, field="data.source", received=repr(received), fix=f"did you mean {meant}?"):
        load(Data(source=received), seed=0)


def test_a_wrong_path_is_refused_with_the_nearest_neighbour(tmp_path):
    (tmp_path / "leaves.tar").touch()
    with refused(DataRefused, fix=f"did you mean {tmp_path}/leaves.tar?"):
        load(Data(source=f"{tmp_path}/leafs.tar"), seed=0)
    with refused(DataRefused, received=repr(f"{tmp_path}/birds.zip")) as caught:
        load(Data(source=f"{tmp_path}/birds.zip"), seed=0)
    assert "did you mean" not in str(caught.error)  # the folder, which both share, makes no neighbour near


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to see")
    with refused(DataRefused, received="a file of 14 bytes", fix=".tar", names=[tmp_path / "notes.txt", "archive"]):
        load(Data(source=str(tmp_path / "notes.txt")), seed=0)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    percent=st.integers(0, 100),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_draw_gives_each_class_its_share_by_the_largest_remainder_and_at_least_one(
    labels: list[int], percent: int, seed: int
):
    array = np.array(labels, dtype=np.int64)
    count = len(labels) * percent // 100
    drawn = splits.draw(array, count, seed=seed, purpose="test")
    assert len(drawn) == count and (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, splits.draw(array, count, seed=seed, purpose="test"))
    sizes = np.bincount(array)
    given, share = np.bincount(array[drawn], minlength=len(sizes)), sizes * count / len(labels)
    assert (given <= sizes).all()
    if count >= np.count_nonzero(sizes):
        assert (given[sizes > 0] >= 1).all()
    if (share[sizes > 0] >= 1).all() or count < np.count_nonzero(sizes):
        owed = share - given
        assert (np.abs(owed) < 1).all() and owed.max() - owed.min() < 1 + 1e-9
    else:
        assert (given <= np.maximum(np.ceil(share), 1)).all()  # nobody gains but who had nothing


@given(
    sizes=st.lists(st.integers(3, 40), min_size=2, max_size=12),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
    limit=st.none() | st.integers(1, 400),
)
@example(sizes=[3, 3], copies=1, seed=0, limit=None)
@example(sizes=[3, 1000], copies=1, seed=1, limit=None)
@example(sizes=[3] * 9 + [10], copies=2, seed=2, limit=1)
def test_a_division_loses_nothing_keeps_copies_together_and_has_every_class_in_every_split(
    sizes: list[int], copies: int, seed: int, limit: int | None
):
    examples = made_up(sizes, copies)
    whole = divided(examples, seed=seed)
    for ids in whole.values():
        assert np.bincount(examples.labels[ids], minlength=len(sizes)).min() >= 1 and (np.diff(ids) > 0).all()
    assert sorted(np.concatenate(list(whole.values()))) == list(range(len(examples.labels)))
    images = [{row.tobytes() for row in examples.pixel_sha256[ids]} for ids in whole.values()]
    assert sum(map(len, images)) == len(set.union(*images)) == sum(sizes)

    kept = divided(examples, seed=seed, limit=limit)
    assert len(kept["train"]) == min(len(whole["train"]), limit or len(whole["train"]))
    for split, ids in kept.items():
        assert len(ids) and set(ids) <= set(whole[split]) and (np.diff(ids) > 0).all()
        share = len(whole[split]) * len(kept["train"]) / len(whole["train"])
        assert abs(len(ids) - share) <= 0.5 or len(ids) == 1


def test_equal_classes_are_divided_alike_if_their_share_is_a_whole_number():
    examples = made_up([10] * 12)
    for split, ids in divided(examples).items():
        assert set(np.bincount(examples.labels[ids])) == {{"train": 7, "validation": 2, "test": 1}[split]}


def test_classes_that_a_limit_leaves_out_are_named():
    division = splits.divide(made_up([50] * 3), name="x", image_size=8, seed=0, limit=2, drawn_part=0.1, allow_duplicates=False)
    notes = [note.split(" with ") for note in division.notes if " no example " in note]
    assert [split for split, _ in notes] == [f"limit 2 leaves {split}" for split in ("train", "validation", "test")]
    assert notes[0][1] in {f"no example of 1 of the 3 classes: {name!r}" for name in "abc"}


@pytest.mark.parametrize(("part", "count"), [(0.2, 24), (0.1, 12), (0.0002, 3)])  # the least: one of each class
def test_a_split_that_divided_data_lacks_is_the_drawn_part_of_train_and_the_others_stay(part: float, count: int):
    examples = replace(made_up([50] * 3), split_sizes={"train": 120, "test": 30})
    division = splits.divide(examples, name="x", image_size=8, seed=0, limit=None, drawn_part=part, allow_duplicates=False)
    assert len(division.ids["validation"]) == count and len(division.ids["train"]) == 120 - count
    assert list(division.ids["test"]) == list(range(120, 150))
    assert any(f"validation: {100 * part:g} % of the 120 training examples" in note for note in division.notes)


def test_half_maps_black_to_minus_one_and_white_to_one():
    made = scaling.scaling_for(Data(normalization="half"), load(Data(source="digits"), seed=0), cache_dir=None)
    assert [0.0 * made.factor[0] + (made.offset or [0])[0], 255.0 * made.factor[0] + (made.offset or [0])[0]] == [-1.0, 1.0]


def test_draws_of_different_purpose_or_seed_are_different():
    labels = np.zeros(1000, dtype=np.int64)
    draws = [splits.draw(labels, 500, seed=seed, purpose=purpose).tolist() for seed, purpose in ((0, "a"), (0, "b"), (1, "a"))]
    assert draws[0] != draws[1] and draws[0] != draws[2]


def divided(examples: LabeledExamples, *, seed: int = 0, limit: int | None = None) -> Mapping[str, splits.Ids]:
    return splits.divide(
        examples, name="x", image_size=8, seed=seed, limit=limit, drawn_part=0.1, allow_duplicates=False
    ).ids  # fmt: skip


def made_up(sizes: list[int], copies: int = 1) -> LabeledExamples:
    """Undivided examples of classes of these sizes, each image so many times."""
    images = np.repeat(np.arange(sum(sizes)), copies)
    labels = np.repeat(np.arange(len(sizes)), sizes)[images]
    pixel_sha256 = np.zeros((len(labels), 32), np.uint8)
    pixel_sha256[:, :8] = images.astype("<u8").reshape(-1, 1).view(np.uint8)
    names = tuple("abcdefghijkl"[: len(sizes)])
    return LabeledExamples(
        labels=labels,
        class_names=names,
        split_sizes={"all": len(labels)},
        pixel_sha256=pixel_sha256,
        names=list(map(str, range(len(labels)))),
    )
