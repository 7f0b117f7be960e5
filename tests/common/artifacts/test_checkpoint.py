"""What is written between two epochs comes back."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.artifacts import checkpoint
from common.artifacts.checkpoint import CheckpointError
from tests.support import comparisons

DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8])
GROUPS = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=20),
    arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)),
    max_size=4,
)


@given(arrays.arrays(np.int64, st.integers(0, 20)), GROUPS, GROUPS, st.integers(0, 9))
def test_what_was_saved_is_loaded_bit_for_bit(ids: np.ndarray, state: dict, best: dict, resumes: int) -> None:
    example = comparisons.checkpoint()
    progress = comparisons.with_fields(example.progress, resumes=resumes)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(checkpoint.Checkpoint(progress, ids, state, best), Path(folder))
        loaded = checkpoint.load(Path(folder))
    assert loaded.progress == progress
    for saved, found in ((state, loaded.state), (best, loaded.best), ({"ids": ids}, {"ids": loaded.ids})):
        assert saved.keys() == found.keys()
        for name, array in saved.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


@given(st.data())
def test_a_checkpoint_of_which_a_byte_has_changed_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(comparisons.checkpoint(), Path(folder))
        path = Path(folder) / checkpoint.FILE
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            checkpoint.load(Path(folder))
