"""What frameworks and system offer beside the suite's switches: `python -m tests.benchmarks.tried --framework F --model M`.

Each thing is tried in processes of its own, in turn with one that has the best switches alone. What gains nothing is no switch.
docs/measurements.md has the figures.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from common import spec
from common.data import sources
from common.models import architectures
from compare.running import launch
from compare.running.interleaving import turn
from compare.statistics.statistics import paired_ratio
from compare.statistics.verdict_words import interval_words
from tests.benchmarks import harness
from tests.benchmarks.bars import BEST_BARS

MODELS = {model: (image_size, batch_size) for model, image_size, batch_size, _ in BEST_BARS}
BATCHES = 8
"""Batches of a timed epoch."""
EPOCHS = 3
"""Timed epochs of a process, whose median counts."""
FAR_OFF = 1.25
"""What takes this many times as long as the best switches in the first round is not run again."""
MOST_SECONDS = 240
"""Limit of a process."""
BEST: dict[tuple[str, str], dict[str, Any]] = {
    ("pytorch", "mini_xception"): {"arithmetic": "bfloat16", "memory_format": "channels_last"},
    ("pytorch", "resnet18"): {"arithmetic": "bfloat16"},
    ("tensorflow", "mini_xception"): {"arithmetic": "bfloat16"},
    ("tensorflow", "resnet18"): {"arithmetic": "bfloat16"},
}
"""The best switches, as docs/measurements.md has them."""


class Tried(NamedTuple):
    """One thing to try."""

    environment: dict[str, str] = {}
    options: dict[str, Any] = {}
    """Of the spec's `framework_options`, over the best ones."""
    fields: dict[str, Any] = {}
    """Of the spec."""
    before: Callable[[], None] = lambda: None
    """Is called once the framework is imported, before the model is built."""
    model: str | None = None
    """The only model that it is for. None: all."""
    library: str | None = None
    """Is loaded before all others."""


ALLOCATORS: dict[str, Tried] = {
    "huge pages": Tried({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    "jemalloc": Tried({"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}, library="libjemalloc.so.2"),
    "tcmalloc": Tried({"TCMALLOC_RELEASE_RATE": "0"}, library="libtcmalloc_minimal.so.4"),
}
"""The two libraries keep freed memory, as the switch `allocator` lets glibc do."""
MICRO_BATCHES = {f"{number} micro-batches": Tried(fields={"accumulation": number}) for number in (2, 4)}


def _flush_denormals() -> None:
    import torch

    if not torch.set_flush_denormal(True):
        raise OSError("This processor cannot flush denormals.")


def _bfloat16_products() -> None:
    import torch

    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _compile_regions(of: Callable[[Any], list[tuple[Any, bool]]]) -> None:
    """Compile some consecutive layers of a model each by itself.

    Args:
        of: cuts layers into (consecutive layers, whether they are compiled).
    """
    import torch

    from pytorch_impl import models

    whole = models._Network._through
    regions: dict[Any, Any] = {}

    def through(self: Any, layers: Any, x: Any, masks: Any) -> Any:
        for part, compiled in of(layers):
            key = id(self), part
            if compiled and key not in regions:
                regions[key] = torch.compile(lambda x, part=part: whole(self, part, x, iter(())))
            x = regions[key](x) if compiled else whole(self, part, x, masks)
        return x

    models._Network._through = through  # pyright: ignore[reportAttributeAccessIssue]
    torch._dynamo.config.cache_size_limit = 256


def _residual_blocks(layers: Any) -> list[tuple[Any, bool]]:
    return [((layer,), isinstance(layer, architectures.Residual)) for layer in layers]


def _norm_with_relu(layers: Any) -> list[tuple[Any, bool]]:
    cut: list[tuple[Any, bool]] = []
    for layer in layers:
        after_norm = cut and len(cut[-1][0]) == 1 and isinstance(cut[-1][0][0], architectures.BatchNorm)
        if isinstance(layer, architectures.ReLU) and after_norm:
            cut[-1] = ((*cut[-1][0], layer), True)
        else:
            cut.append(((layer,), isinstance(layer, architectures.BatchNorm)))
    return cut


def _compile_kind(kind: str) -> None:
    """Compile each module of a kind in torchvision's model by itself."""
    import torch
    from torch import nn

    from pytorch_impl import models

    build = models.build

    def built(*given: Any, **named: Any) -> nn.Module:
        model = build(*given, **named)
        for module in model.modules():
            if type(module).__name__ == kind:
                module.compile()
        return model

    models.build = built
    torch._dynamo.config.cache_size_limit = 256


def _layout_compiled() -> None:
    import torch._inductor.config

    torch._inductor.config.force_layout_optimization = True


def _graph_options(**options: bool) -> None:
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(options)


def _xla_batch_norm() -> None:
    import tensorflow as tf

    from tensorflow_impl import batch_norm

    whole = batch_norm._BatchNorm.call

    def call(self: Any, inputs: Any, training: bool = False) -> Any:
        return tf.function(functools.partial(whole, self, training=training), jit_compile=True)(inputs)

    batch_norm._BatchNorm.call = call


TRIED: dict[str, dict[str, Tried]] = {
    "pytorch": ALLOCATORS
    | MICRO_BATCHES
    | {
        "denormals as zero": Tried(before=_flush_denormals),
        "float32 with bfloat16 products": Tried(options={"arithmetic": "full"}, before=_bfloat16_products),
        "BatchNorm compiled with its ReLU": Tried(before=lambda: _compile_regions(_norm_with_relu), model="mini_xception"),
        "residual blocks compiled": Tried(before=lambda: _compile_regions(_residual_blocks), model="mini_xception"),
        "BatchNorm compiled": Tried(before=lambda: _compile_kind("BatchNorm2d"), model="resnet18"),
        "torchvision's residual blocks compiled": Tried(before=lambda: _compile_kind("BasicBlock"), model="resnet18"),
        "compiled with inductor's layout": Tried(options={"graph": "compile"}, before=_layout_compiled),
    },
    "tensorflow": ALLOCATORS
    | MICRO_BATCHES
    | {
        "BFC allocator": Tried({"TF_CPU_ALLOCATOR_USE_BFC": "1"}),
        "no graph optimizer": Tried(before=lambda: _graph_options(disable_meta_optimizer=True)),
        "no remapping": Tried(before=lambda: _graph_options(remapping=False)),
        "no layout optimizer": Tried(before=lambda: _graph_options(layout_optimizer=False)),
        "bfloat16 where the graph optimizer sees fit": Tried(
            options={"arithmetic": "full"}, before=lambda: _graph_options(auto_mixed_precision_onednn_bfloat16=True)
        ),
        "float32 with bfloat16 products": Tried({"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, {"arithmetic": "full"}),
        "clusters by XLA": Tried({"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}),
        "BatchNorm by XLA": Tried(before=_xla_batch_norm),
    },
}
NOTHING = "best switches"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", required=True, choices=launch.FRAMEWORKS)
    parser.add_argument("--model", required=True, choices=list(MODELS))
    parser.add_argument("--rounds", type=int, choices=range(1, 101), default=3, metavar="N", help="from 1 to 100; default: 3")
    parser.add_argument("--only", help=f"some of these, with commas: {', '.join(dict.fromkeys(chain(*TRIED.values())))}")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    fitting = {name: each for name, each in TRIED[arguments.framework].items() if each.model in (None, arguments.model)}
    tried = {NOTHING: Tried()} | fitting
    if arguments.one:
        print(json.dumps(_seconds(arguments.framework, arguments.model, tried[arguments.one])))
        return
    names = list(fitting) if arguments.only is None else arguments.only.split(",")
    if unknown := set(names) - set(fitting):
        parser.error(f"--only: received {', '.join(sorted(unknown))}. Use {', '.join(fitting)}.")
    found: dict[str, list[float]] = {name: [] for name in (NOTHING, *names)}
    ended: dict[str, str] = {}  # what is not run again, and what to say of it
    for number in range(arguments.rounds):
        for name in turn([name for name in found if name not in ended], number):
            made = _in_a_process(arguments.framework, arguments.model, name, tried[name])
            print(name, made, sep=": ", file=sys.stderr, flush=True)
            if isinstance(made, str):
                ended[name] = made
            else:
                found[name].append(made)
        if NOTHING in ended:
            sys.exit(f"{NOTHING}: {ended[NOTHING]}")
        base = found[NOTHING][0]
        ended |= {
            name: f"{base / seconds[0]:.2f}, one run"
            for name, seconds in found.items()
            if len(seconds) == 1 and seconds[0] >= FAR_OFF * base
        }
    table = Table("tried", "times as fast as the best switches alone (95 % interval)")
    for name in names:
        table.add_row(name, ended.get(name) or _ratio_words(found[NOTHING], found[name]))
    Console().print(table)


def _ratio_words(base: list[float], seconds: list[float]) -> str:
    ratio = paired_ratio(list(zip(base, seconds, strict=True)), one_look=True)
    return interval_words(ratio) if ratio else "not measured"


def _in_a_process(framework: str, model: str, name: str, tried: Tried) -> float | str:
    """Median seconds of an epoch, or why it could not be measured."""
    library = tried.library
    environment = tried.environment | ({"LD_PRELOAD": library} if library is not None else {})
    command = [sys.executable, "-m", "tests.benchmarks.tried", "--framework", framework, "--model", model, "--one", name]
    try:
        made = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done after {MOST_SECONDS} s"
    if library is not None and f"object '{library}'" in made.stderr:  # the loader's only word on it
        return f"{library} is not here"
    if made.returncode:
        return f"failed: {(made.stderr.strip().splitlines() or ['without a word'])[-1]}"
    return statistics.median(json.loads(made.stdout.splitlines()[-1]))


def _seconds(framework: str, model: str, tried: Tried) -> list[float]:
    """Seconds of each epoch after the first."""
    image_size, batch_size = MODELS[model]
    what = spec.build(
        {
            "model": model,
            "data": {"source": f"leaves:classes=10,images=1200,size={image_size},seed=1", "limit": BATCHES * batch_size},
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "global_batch_size": batch_size,
            "epochs": EPOCHS + 1,
            "framework_options": BEST[framework, model] | tried.options,
        }
        | tried.fields
    )
    importlib.import_module(f"{framework}_impl.switches").prepare(what)
    importlib.import_module(f"{framework}_impl.device").configure(what)
    tried.before()
    with contextlib.redirect_stdout(sys.stderr):
        epoch = harness.harness(framework, what, sources.load(what.data, seed=what.seed))
        epoch()
        return [epoch() for _ in range(EPOCHS)]


if __name__ == "__main__":
    main()
