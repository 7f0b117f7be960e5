import gc
import io
import resource
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from common.data.batches import BatchPlan, EpochDraws
from common.data.decoding import decode
from common.data.decoding.images import MappedRows, select_rows
from common.data.preprocessing import affine
from common.data.preprocessing.scaling import IMAGENET_MEAN, IMAGENET_STD
from common.data.sources import DatasetSplit, Encoded
from common.models.architectures import Architecture, Dropout
from common.models.input_scaling import InputScaling
from common.training.trainer import Batch
from tests.twins import made, oracles
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
SPLIT = made.dataset(ARCHITECTURE).train

AUGMENTED = {"horizontal_flip": True, "shift_px": 5}
AFFINE = {**AUGMENTED, "rotation_degrees": 40, "shear_degrees": 20, "zoom": 0.3, "brightness": 0.4}

FLIPS = np.array([True, False, True, False, True])
SHIFTS = np.array([[0, 0], [2, -1], [-12, 0], [3, 11], [-1, -20]])


@pytest.mark.parametrize("shifts", [None, SHIFTS], ids=["still", "shifted"])
@pytest.mark.parametrize("flips", [None, FLIPS], ids=["unflipped", "flipped"])
def test_augmentation_moves_every_pixel_as_drawn(twin: Twin, flips: Any, shifts: Any) -> None:
    images = SPLIT.images[:5]
    augmented = augment(twin, images, flips=flips, shifts=shifts)
    assert augmented.dtype == np.uint8
    assert np.array_equal(augmented, oracles.augment(images, flips, shifts))


def test_a_shift_beyond_the_edge_leaves_nothing(twin: Twin) -> None:
    far = np.array([[12, 0], [0, -12], [99, -99]])
    assert not augment(twin, SPLIT.images[:3], shifts=far).any()


@pytest.mark.parametrize("units", [3, 8, 11, 128])
def test_masks_are_the_bits_that_were_drawn(twin: Twin, units: int) -> None:
    architecture = Architecture("any", 12, 3, (Dropout("dropout", 0.3, units),))
    drawn = BatchPlan(made.settings(), architecture, 9).draw(1)
    (found,) = map(twin.array, twin.input.unpack(drawn.map(twin.tensor)))
    (expected,) = oracles.masks(drawn)
    assert found.shape == (9, units) and found.dtype == np.bool_ and np.array_equal(found, expected)


def test_an_affine_map_of_whole_pixels_is_the_flip_and_the_shift(twin: Twin) -> None:
    images, still = SPLIT.images[:5], np.zeros(5)
    affines = affine.matrices(
        images.shape[1], rotation_degrees=still, shear_degrees=still, zoom=still + 1.0, flips=FLIPS, shifts=SHIFTS
    )
    assert np.array_equal(augment(twin, images, affines=affines), oracles.augment(images, FLIPS, SHIFTS))


def test_a_quarter_turn_is_counter_clockwise(twin: Twin) -> None:
    images, none = SPLIT.images[:2], np.zeros(2)
    quarter = affine.matrices(
        images.shape[1],
        rotation_degrees=np.array([90.0, -90.0]),
        shear_degrees=none,
        zoom=none + 1.0,
        flips=none > 0,
        shifts=np.zeros((2, 2), np.int64),
    )
    turned = augment(twin, images, affines=quarter)
    inner = slice(1, -1)  # at the very edge a cosine of 6e-17 looks outside
    assert np.array_equal(turned[0][inner, inner], np.rot90(images[0])[inner, inner])
    assert np.array_equal(turned[1][inner, inner], np.rot90(images[1], -1)[inner, inner])


def test_sampling_is_four_tap_bilinear_to_the_last_bits(twin: Twin) -> None:
    drawn = plan(augmentation=AFFINE).draw(1)
    images = SPLIT.images[drawn.ids]
    sampled = twin.array(twin.input.sample(twin.tensor(images), twin.tensor(drawn.affines)))
    expected = oracles.sample(images, drawn.affines)
    assert sampled.dtype == np.float64
    assert np.abs(sampled - expected).max() <= 1e-12 * 255
    bright = augment(twin, images, affines=drawn.affines, brightness=drawn.brightness)
    rounded = np.clip(np.rint(expected * drawn.brightness[:, None, None, None]), 0, 255)
    assert np.abs(bright - rounded).max() <= 1  # where a value lies half-way
    assert (bright != rounded).mean() < 1e-4


def test_brightness_is_rounded_and_stays_within_the_bytes(twin: Twin) -> None:
    images = np.array([[100, 200, 1], [0, 255, 5]], np.uint8).reshape(2, 1, 1, 3)
    bright = augment(twin, images, brightness=np.array([1.5, 0.5]))
    assert bright.reshape(2, 3).tolist() == [[150, 255, 2], [0, 128, 2]]  # 1.5, 127.5 and 2.5 go to the even neighbour


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_scaling_is_one_multiplication_in_the_models_precision(twin: Twin, precision: Any) -> None:
    every_value = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    scaled = twin.nhwc(twin.input.scale(twin.tensor(every_value), twin.dtype(precision.__name__), InputScaling()))
    assert scaled.dtype == precision
    assert np.array_equal(scaled, every_value.astype(precision) * precision(1 / 255))


def test_normalisation_takes_each_channels_mean_and_standard_deviation(twin: Twin) -> None:
    every_value = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    scaling = InputScaling(IMAGENET_MEAN, IMAGENET_STD)
    scaled = twin.nhwc(twin.input.scale(twin.tensor(every_value), twin.dtype("float64"), scaling))
    assert np.allclose(scaled, (every_value / 255 - IMAGENET_MEAN) / IMAGENET_STD, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_inline_batches_are_this_ranks_shards_of_the_plan(twin: Twin, world_size: int, rank: int) -> None:
    assert_follows_the_plan(twin, plan(epochs=2), SPLIT, world_size, rank)


@pytest.mark.slow
def test_a_worker_gives_the_same_batches_in_the_same_order(twin: Twin) -> None:
    assert_follows_the_plan(twin, plan(epochs=2, input="workers", workers=1), SPLIT, 1, 0)


def test_workers_read_a_ranks_images_from_a_memory_map(twin: Twin, tmp_path: Path) -> None:
    file = tmp_path / "pixels"
    file.write_bytes(b"header" + SPLIT.images.tobytes())
    mapped = np.memmap(file, np.uint8, "r", offset=6, shape=SPLIT.images.shape)
    split = DatasetSplit(images=mapped, labels=SPLIT.labels)
    assert_follows_the_plan(twin, plan(epochs=6, input="workers", workers=2, prefetch=1), split, 3, 1)


def test_workers_write_into_memory_that_is_used_again(twin: Twin) -> None:
    whole = plan(epochs=6, input="workers", workers=1, prefetch=1)
    feed = twin.input.feed(whole, SPLIT, 1, 0)
    kept = list(feed(1, [0, 1]))  # of the first call
    batches = [batch for epoch in range(1, 7) for batch in feed(epoch, range(whole.steps_in(epoch)))]
    for batch, (start, stop) in zip(kept, whole.bounds(1, 1, 0), strict=False):
        assert np.array_equal(arrays(twin, batch)[1], loaded(whole, 1, start, stop)[1])
    if twin.framework == "pytorch":  # one ahead, one in use, and the one before
        assert len({batch.images.data_ptr() for batch in batches}) == 3
        assert kept[0].images.is_shared() and not kept[0].ids.is_shared()  # an epoch keeps the ids of all its batches


def test_workers_send_their_batches_also_where_no_memory_can_be_shared(twin: Twin) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, limits[1]))
    try:
        feed = twin.input.feed(whole := plan(input="workers", workers=1), SPLIT, 1, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for _ in range(2):
        received = [arrays(twin, batch)[1] for batch in feed(1, range(whole.steps_in(1)))]
        expected = [loaded(whole, 1, start, stop)[1] for start, stop in whole.bounds(1, 1, 0)]
        assert all(map(np.array_equal, received, expected))


@pytest.mark.slow
def test_a_worker_reads_images_from_a_part_of_a_memory_map(twin: Twin, tmp_path: Path) -> None:
    file = tmp_path / "pixels"
    file.write_bytes(bytes(SPLIT.images.size) + SPLIT.images.tobytes())
    count = len(SPLIT.labels)
    part = np.memmap(file, np.uint8, "r", shape=(2 * count, *SPLIT.images.shape[1:]))[count:]
    assert_follows_the_plan(twin, plan(input="workers", workers=1), DatasetSplit(images=part, labels=SPLIT.labels), 1, 0)


@pytest.mark.parametrize("fields", [{}, {"input": "workers", "workers": 1}, {"input": "dask", "workers": 2}])
def test_rows_of_a_memory_map_are_fed_as_a_whole_one_is(twin: Twin, tmp_path: Path, fields: dict[str, Any]) -> None:
    ids = np.arange(len(SPLIT)) * 2 + 1
    whole = np.zeros((2 * len(SPLIT) + 1, *SPLIT.images.shape[1:]), np.uint8)
    whole[ids] = SPLIT.images
    np.save(tmp_path / "pixels.npy", whole)
    rows = select_rows(np.load(tmp_path / "pixels.npy", mmap_mode="r"), ids)
    assert isinstance(rows, MappedRows)
    assert_follows_the_plan(twin, plan(**fields), DatasetSplit(images=rows, labels=SPLIT.labels), 3, 1)


@pytest.mark.parametrize("order", ["global", "chunks"])
def test_dasks_threads_give_the_plans_batches(twin: Twin, order: str) -> None:
    chunked = plan(epochs=2, input="dask", workers=2, dask={"chunk_images": 5, "order": order})
    assert_follows_the_plan(twin, chunked, SPLIT, 2, 1)


def test_whole_order_by_dask_is_serials_and_chunks_stay_together_where_it_is_asked_for() -> None:
    serial, gathered = plan().draw(1), plan(input="dask", workers=1).draw(1)
    assert np.array_equal(serial.ids, gathered.ids)
    by_chunks = plan(input="dask", workers=1, dask={"chunk_images": 5, "order": "chunks"}).draw(1).ids
    assert sorted(by_chunks) == sorted(serial.ids)
    assert not np.array_equal(by_chunks, serial.ids)
    assert (np.diff(by_chunks // 5) != 0).sum() == 4  # each of the five chunks is entered once


@pytest.mark.slow
def test_a_cluster_of_processes_sends_the_plans_batches(twin: Twin, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", SPLIT.images)
    split = DatasetSplit(images=np.load(tmp_path / "pixels.npy", mmap_mode="r"), labels=SPLIT.labels)
    chunked = plan(epochs=2, input="dask", workers=2, dask={"chunk_images": 5, "scheduler": "processes"})
    assert_follows_the_plan(twin, chunked, split, 1, 0)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        address = {"chunk_images": 5, "scheduler": cluster.scheduler_address}
        assert_follows_the_plan(twin, plan(input="dask", workers=2, dask=address), split, 1, 0)


@pytest.mark.parametrize(
    "fields",
    [{}, pytest.param({"input": "workers", "workers": 2}, marks=pytest.mark.slow), {"input": "dask", "workers": 1}],
)
def test_files_are_decoded_when_their_batch_is_made(twin: Twin, tmp_path: Path, fields: dict[str, Any]) -> None:
    split, expected = files(tmp_path)
    streamed = BatchPlan(made.settings(augmentation=AUGMENTED, **fields), ARCHITECTURE, len(split))
    batches = list(twin.batches(streamed, split, 1, 0))
    assert [twin.array(batch.ids).tolist() for batch in batches] == [streamed.draw(1).ids[a:b].tolist() for a, b in BOUNDS]
    drawn = streamed.draw(1)
    for batch, (start, stop) in zip(batches, BOUNDS, strict=True):
        ids = drawn.ids[start:stop]
        images = oracles.augment(expected[ids], drawn.flips[start:stop], drawn.shifts[start:stop])
        assert np.array_equal(twin.array(batch.images), images)


def test_runs_that_are_read_in_turn_and_left_do_not_disturb_each_other(twin: Twin) -> None:
    one, other = (twin.batches(plan(), SPLIT, 1, 0) for _ in range(2))
    first, same = next(one), next(other)
    assert np.array_equal(twin.array(first.ids), twin.array(same.ids))
    del one
    gc.collect()
    assert len(list(other)) == 2


def test_steps_cut_the_last_epoch_short(twin: Twin) -> None:
    short = plan(epochs=None, steps=4)
    assert (short.steps_per_epoch, short.epochs, short.steps_in(2)) == (3, 2, 1)
    assert_follows_the_plan(twin, short, SPLIT, 1, 0)


def test_images_too_large_for_memory_are_read_from_their_file(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin.input, "_MOST_BYTES_IN_MEMORY", 0, raising=False)  # of TensorFlow's; torch always reads the file
    assert_follows_the_plan(twin, plan(epochs=2), SPLIT, 2, 1)


def test_without_augmentation_the_images_are_the_data_sets(twin: Twin) -> None:
    for batch in twin.batches(plan(augmentation={}), SPLIT, 1, 0):
        ids = twin.array(batch.ids)
        assert np.array_equal(twin.array(batch.images), SPLIT.images[ids])
        assert np.array_equal(twin.array(batch.labels), SPLIT.labels[ids])


def test_a_batch_turned_back_to_front_holds_the_same_examples(twin: Twin) -> None:
    spec = made.settings(augmentation=AUGMENTED)
    forward, backward = (
        list(twin.batches(BatchPlan(spec, ARCHITECTURE, len(SPLIT), reverse), SPLIT, 1, 0)) for reverse in (False, True)
    )
    for one, other in zip(forward, backward, strict=True):
        for left, right in zip(arrays(twin, one), arrays(twin, other), strict=True):
            assert np.array_equal(left, right[::-1])


def augment(twin: Twin, images: Any, **draws: Any) -> npt.NDArray[np.uint8]:
    absent = dict.fromkeys(("flips", "shifts", "affines", "brightness"))
    drawn = EpochDraws(ids=np.arange(len(images)), masks=(), mask_units=(), **{**absent, **draws})
    return twin.array(twin.input.augment(twin.tensor(images), drawn.map(twin.tensor)))


BOUNDS = [(0, 9), (9, 18), (18, 22)]


def files(folder: Path) -> tuple[DatasetSplit, npt.NDArray[np.uint8]]:
    """A split of which only the files count: JPEGs of the models' size and larger ones, and a PNG."""
    size = ARCHITECTURE.image_size
    contents: list[bytes] = []
    for index, image in enumerate(SPLIT.images):
        picture = Image.fromarray(image).resize((size + index % 3 * 5, size + index % 4), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG" if index == 7 else "JPEG", quality=90)
        contents.append(buffer.getvalue())
    (folder / "files").write_bytes(b"".join(contents))
    sizes = np.array([len(content) for content in contents])
    encoded = Encoded(folder / "files", np.cumsum(sizes) - sizes, sizes, np.arange(len(contents)) != 7)
    split = DatasetSplit(images=np.zeros_like(SPLIT.images), labels=SPLIT.labels, encoded=encoded)
    return split, np.stack([decode.decode(content, size) for content in contents])


def plan(**fields: Any) -> BatchPlan:
    """22 examples in batches of 9: the last has 4."""
    return BatchPlan(made.settings(**{"augmentation": AUGMENTED, **fields}), ARCHITECTURE, len(SPLIT))


def assert_follows_the_plan(twin: Twin, plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int) -> None:
    expected = [
        loaded(plan, epoch, start, stop)
        for epoch in range(1, plan.epochs + 1)
        for start, stop in plan.bounds(epoch, world_size, rank)
    ]
    assert len(expected) == plan.total_steps
    previous: Batch | None = None
    for number, (batch, theirs) in enumerate(zip(twin.batches(plan, split, world_size, rank), expected, strict=True)):
        # A batch stays as it is while the one after it is in use.
        for each, oracles_of_it in ((batch, theirs), (previous, expected[number - 1])):
            for array, oracle in zip(arrays(twin, each), oracles_of_it, strict=True) if each else ():
                assert array.dtype == oracle.dtype
                assert np.array_equal(array, oracle)
        previous = batch


def loaded(plan: BatchPlan, epoch: int, start: int, stop: int) -> list[npt.NDArray[Any]]:
    drawn = plan.draw(epoch)
    ids = drawn.ids[start:stop]
    flips, shifts = (None if draw is None else draw[start:stop] for draw in (drawn.flips, drawn.shifts))
    masks = [mask[start:stop] for mask in oracles.masks(drawn)]
    return [ids, oracles.augment(SPLIT.images[ids], flips, shifts), SPLIT.labels[ids], *masks]


def arrays(twin: Twin, batch: Batch) -> list[npt.NDArray[Any]]:
    return [twin.array(tensor) for tensor in (batch.ids, batch.images, batch.labels, *batch.masks)]
