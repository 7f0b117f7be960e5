"""An exercise: find the mistake that is planted in the PyTorch twin.

    python -m tests.planted.exercise 7            # number 7 of the mistakes: where the frameworks part, and no more
    python -m tests.planted.exercise 7 --reveal   # and its name

The mistake is planted in the twin's own code in memory; no file is changed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.numpy

from common.models import architectures
from compare.proof import certificate, rungs
from tests.parity.settings import setting

PROJECT = Path(__file__).parents[2]

DEFECTS = (
    ("sgd", "labels_are_swapped"),
    ("sgd", "batch_norm_momentum_means_old"),
    ("adam", "adam_epsilon_of_keras"),
    ("sgd", "flatten_is_channels_first"),
    ("sgd", "max_pool_padding_is_symmetric"),
    ("sgd", "learning_rate_in_the_buffer"),
    ("sgd", "dropout_mask_is_ignored"),
    ("sgd", "batch_norm_epsilon_of_keras"),
    ("sgd", "later_batches_are_reversed"),
    ("adam", "adam_weight_decay_is_decoupled"),
    ("sgd", "batch_norm_running_variance_is_biased"),
    ("sgd", "images_are_scaled_by_256"),
)
"""A setting, and what is planted in the PyTorch twin."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.exercise", description="Find the mistake that is planted.")
    parser.add_argument("number", type=int, help=f"which mistake, 1 to {len(DEFECTS)}")
    parser.add_argument("--reveal", action="store_true", help="say its name")
    arguments = parser.parse_args()
    if not 1 <= arguments.number <= len(DEFECTS):
        parser.error(f"the number must be 1 to {len(DEFECTS)}. Received: {arguments.number}.")
    name, defect = DEFECTS[arguments.number - 1]
    proof = _proof(name, defect)
    print(f"{'rung':52} {'status':8} largest relative difference")
    for rung in proof.rungs:
        print(f"{rung.name:52} {rung.status:8} {rung.max_relative_difference:.1e}")
    print(f"\n{proof.sentence}")
    print(f"Planted: {defect}" if arguments.reveal else "What is wrong? Look for it where the first failed rung looks.")
    return 0


def _proof(name: str, defect: str) -> certificate.Proof:
    """PyTorch with the mistake, held against TensorFlow without it."""
    base = setting(name)
    with tempfile.TemporaryDirectory(prefix="convtwins-") as temporary:
        folder = Path(temporary)
        spec_file = folder / f"{name}.json"
        spec_file.write_text(base.to_json(), encoding="utf-8")
        recorded = {}
        for framework, planted in (("tensorflow", "nothing"), ("pytorch", defect)):
            command = [sys.executable, "-m", "tests.planted.plant", framework, temporary, f"{spec_file}:{planted}"]
            done = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{framework} could not record:\n{done.stderr[-3000:]}")
            recorded[framework] = safetensors.numpy.load_file(folder / f"{name}-{planted}.safetensors")
    architecture = architectures.resolve(base.model, 10, 32)
    compared = rungs.compare_serials(base, architecture, recorded["tensorflow"], recorded["pytorch"], None)
    return certificate.Proof(rungs=compared, seconds=0.0)


if __name__ == "__main__":
    sys.exit(main())
