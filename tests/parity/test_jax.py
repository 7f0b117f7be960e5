"""The JAX twin, in an environment of its own, against PyTorch. Skipped where there is no JAX. tests/twins has its contract."""

import os
from pathlib import Path

import pytest

from common import spec
from compare.proof import ladder
from compare.running import launch, options
from compare.running.twins import Twins
from tests.support import jax_environment, processes

PYTHON = jax_environment.interpreter()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="JAX and its twin cannot be imported, see docs/a-new-twin.md")


def twins() -> Twins:
    return Twins.choose(["pytorch"], [f"jax=jax@{PYTHON}"], (), launch.FRAMEWORKS)


def _proved(tmp_path: Path, model: str, steps: int, modes: list[str]) -> ladder.Proof:
    what = spec.build({"model": model, "data": {"limit": 100}, "optimizer": options.OPTIMIZERS["sgd"]})
    request = ladder.ProofRequest(what, twins(), modes, replicas=2, steps=steps)
    return ladder.prove(request, out=tmp_path, progress=lambda text: None, remember=False)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "steps"), [("simple_cnn", 10), ("mini_xception", 5), ("resnet18", 2)])
def test_the_twin_is_proved_to_train_as_pytorch_does(model: str, steps: int, tmp_path: Path) -> None:
    modes = [] if model == "resnet18" else ["data_parallel"]
    proof = _proved(tmp_path, model, steps, modes)
    assert proof.verdict == "proved", proof.sentence
    assert not modes or proof.mode_verdict("jax", "data_parallel") in ("proved", "not claimed")


def test_modes_that_the_twin_lacks_are_not_available() -> None:
    description = twins().describe("jax")
    for mode in set(spec.MODES.names()) - {"serial", "data_parallel"}:
        word = next(word for word, traits in spec.MODES.items() if traits.name == mode)
        asked = spec.build(spec.with_variant(spec.build({}).model_dump(), word, 2))
        assert spec.check_against(asked, description) == f"not available: jax has no mode {mode}"


def printed(code: str) -> str:
    """What a program prints in the twin's interpreter."""
    path = os.pathsep.join(filter(None, [str(processes.PROJECT), os.environ.get("PYTHONPATH")]))
    return processes.run([PYTHON, "-c", code], PYTHONPATH=path).succeeded().stdout.strip()


def test_the_twin_takes_no_more_of_a_gpu_than_it_needs() -> None:
    """As the other twins. It is set before JAX is imported."""
    code = (
        "import os, sys; from common import spec; from jax_impl import switches; switches.prepare(spec.build({})); "
        "print(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'], 'jax' in sys.modules)"
    )
    assert printed(code).split() == ["false", "False"]


def test_depthwise_convolutions_as_products_are_the_grouped_ones() -> None:
    code = """
import jax, numpy as np
from jax_impl import device, models
drawn = np.random.default_rng(0).standard_normal
x, kernel = drawn((2, 9, 9, 4)), drawn((3, 3, 1, 4))
for stride, padding in ((1, ((1, 1), (1, 1))), (2, ((0, 1), (0, 1)))):
    def both(of):
        made, back = jax.vjp(of, x, kernel)
        return made, *back(made)
    grouped = jax.jit(lambda: both(lambda x, kernel: models._convolution(x, kernel, stride, padding, 4)))
    products = jax.jit(lambda: both(lambda x, kernel: models._products(x, kernel, stride, padding)))
    for one, other in zip(grouped(), products()):
        assert one.shape == other.shape and one.dtype == "float64" and abs(one - other).max() < 1e-12, (stride, padding)
print("equal")
"""
    assert printed(code) == "equal"


def test_the_twin_tells_gpus_apart_and_names_the_libraries_beside_it() -> None:
    code = """
from types import SimpleNamespace
import jax
from common.machine import environment
from jax_impl import device
from compare.running.twins import Twins
there = {"nvidia-cudnn-cu12": "9.1", "nvidia-nccl-cu13": "2.28", "nvidia-cuda-runtime": "13.0", "nvidia-cublas-cu12": "12.9"}
environment.distributions = lambda: there
for version in ("PJRT C API\\ncuda 13000", "PJRT C API\\nrocm 60300"):
    gpu = SimpleNamespace(platform="gpu", device_kind="A", client=SimpleNamespace(platform_version=version))
    jax.local_devices = lambda: [gpu]
    found = device.describe()
    print(found["devices"][0]["kind"], found["options"]["arithmetic"]["values"], found["libraries"])
"""
    libraries = "{'cuDNN': '9.1', 'NCCL': '2.28', 'CUDA': '13.0'}"
    assert printed(code).splitlines() == [
        f"cuda ['full', 'bfloat16', 'tf32'] {libraries}",
        f"rocm ['full', 'bfloat16'] {libraries}",
    ]
