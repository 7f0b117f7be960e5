"""The figures of one run: its pace, the work of others meanwhile, the time to an accuracy, the limits of the machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from common.artifacts.schema import RunResult
from common.machine import interference
from common.machine.interference import DISTURBED_FROM, LEAST_TIMED_SECONDS
from common.machine.rates import DeviceRates
from common.spec import Spec
from compare.judgement import slices
from compare.judgement.row_figures import Doubt, Limit
from compare.results.store import Comparison

_WATCHED_MARGIN = 1.2
"""Factor on the length that training needs at least to be watched: the next run may be quicker."""


def epoch_seconds(result: RunResult) -> float:
    """Median over the run's epochs, each at the pace of its timed steps.

    A run of the input alone may have epochs of few batches. It is taken at the pace of all its steps together.
    """
    if result.spec.part != "input":
        return finite_median([epoch.seconds for epoch in result.epochs])
    images = sum(epoch.timed_images for epoch in result.epochs)
    seconds = sum(epoch.timed_seconds for epoch in result.epochs)
    return result.epochs[0].epoch_images * seconds / images if images else float("nan")


def images_per_second(result: RunResult) -> float:
    """The images of an epoch over its `epoch_seconds`, so that ratios of the one are those of the other."""
    return result.epochs[0].epoch_images / epoch_seconds(result) if result.epochs else float("nan")


def steps_needed(spec: Spec) -> int:
    """Timed steps below which the pace of the input alone is not reliable: several times the batches made ahead."""
    return 4 * max(spec.batches_ahead, 1) if spec.part == "input" else 0


def timed_steps(result: RunResult) -> int:
    return sum(epoch.timed_steps for epoch in result.epochs)


def finite_median(values: Sequence[float]) -> float:
    """Median of the finite values. NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else float("nan")


def cores_lost(result: RunResult) -> float | None:
    """Cores of the run's CPUs that other work took. Older results only allow an estimate from the use of all cores.

    It is a mean over the training time. Of a run that took turns, it is the median over its slices: a disturbed slice costs a
    slice, and not the run.
    """
    if cores_by_slice := [cores for epoch in result.epochs for cores in map(slices.cores_lost, epoch.slices)]:
        return statistics.median(cores_by_slice)
    if result.noise and result.noise.cores_taken is not None:
        return result.noise.cores_taken
    if result.cores_of_others is None or not result.machine.get("logical_cores"):
        return None
    return interference.cores_taken(result.cores_of_others, result.spec.cores, result.machine)


def disturbing_cores(result: RunResult) -> float | None:
    """Cores that other work or the hypervisor took from a run's budget. None if too few to disturb it.

    The same burst of other work disturbs a short run more easily than a long one, unless it took turns: see `cores_lost`.
    """
    cores = cores_lost(result) or 0.0
    if result.noise and not slices.took_turns([result]):  # slices know what the hypervisor took
        cores = max(cores, result.noise.cores_stolen or 0.0)
    return cores if cores > DISTURBED_FROM else None


def cores_words(cores: float) -> str:
    """A number of cores, with a third digit where two would not show that it exceeds `DISTURBED_FROM`."""
    return f"{cores:.2f}" if round(cores, 2) > DISTURBED_FROM else f"{cores:.3f}"


def disturbance_words(result: RunResult) -> str:
    """The disturbance of a run for its progress line: `disturbed: 0.97 cores taken`, or why nobody can tell. May be empty."""
    if (cores := disturbing_cores(result)) is not None:
        return f"disturbed: {cores_words(cores)} cores taken"
    return f"under {LEAST_TIMED_SECONDS} s of training: too short to be watched" if is_unwatched(result) else ""


def ending(result: RunResult) -> tuple[RunResult, str]:
    """Return a run and its disturbance, for its progress line."""
    return result, disturbance_words(result)


def is_unwatched(result: RunResult) -> bool:
    """Whether a run's training was too short to tell whether other work disturbed it."""
    return result.spec.part == "training" and result.cores_used is None


def longer(spec: Spec, training_seconds: float) -> tuple[str, str]:
    """The option that makes a training long enough to be watched for other work, with a margin for quicker runs.

    Args:
        training_seconds: seconds that the training of this spec takes.
    """
    factor = _WATCHED_MARGIN * LEAST_TIMED_SECONDS / max(training_seconds, 1e-3)
    length = math.ceil(factor * (spec.epochs or spec.steps or 1))
    return ("--epochs", str(length)) if spec.epochs is not None else ("--set", f"steps={length}")


def doubt(result: RunResult) -> Doubt | None:
    """Why no time of a run is reliable. None if its times are."""
    if disturbing_cores(result) is not None:
        return "disturbed"
    if is_unwatched(result):
        return "unwatched"
    return None if result.clock_caution is None else "late_losses"


def times_in_doubt(result: RunResult) -> bool:
    """Whether other work took cores of a run's budget, or its times are unreliable for another reason. See `doubt`."""
    return doubt(result) is not None


def time_to_accuracy(result: RunResult, accuracy: float) -> tuple[float, int] | None:
    """Training seconds and epochs until the validation accuracy first reached `accuracy`. None if it never did.

    The first step of each process until then counts. So do steps that were not timed, at the pace of the others.
    """
    seconds = 0.0
    for epoch in result.epochs:
        seconds += epoch.training_seconds + (epoch.first_step_seconds or 0.0)
        if epoch.validation is not None and epoch.validation.accuracy >= accuracy:
            return seconds, epoch.epoch
    return None


def limit_of_run(comparison: Comparison, result: RunResult) -> Limit | None:
    return limit(comparison, result.spec, result.device, images_per_second(result), result.device_rates)


def limit(
    comparison: Comparison, spec: Spec, device: str | None, rate: float, device_rates: DeviceRates | None = None
) -> Limit | None:
    """Rates of a run beside those that the machine can reach.

    Args:
        comparison: record with the model's work and the machine's rates.
        device: device of the run. The comparison's rates are those of the CPU.
        rate: images per second in training. NaN if unknown.
        device_rates: rates of one accelerator. Each replica has one.
    """
    work = comparison.work
    if work is None or spec.part == "input" or not math.isfinite(rate):
        return None
    on_cpu = (device or "").startswith("cpu") and not spec.hosts
    cpu_rates = comparison.rates.get(spec.cores) if on_cpu else None
    gflop, gigabytes = 1e-9 * work.flops, 1e-9 * work.bytes_moved(spec)
    matrix_gflops = copy_gb_per_second = None
    if cpu_rates:
        matrix_gflops, copy_gb_per_second = cpu_rates.gflops(spec.precision), cpu_rates.copy_gb_per_second
    elif device_rates:
        matrix_gflops, copy_gb_per_second = (
            spec.replicas * rate for rate in (device_rates.matrix_gflops, device_rates.copy_gb_per_second)
        )
    return Limit(
        gflop_per_image=gflop,
        mb_per_image=1e3 * gigabytes,
        gflops=gflop * rate,
        matrix_fraction=gflop * rate / matrix_gflops if matrix_gflops else None,
        gb_per_second=gigabytes * rate,
        copy_fraction=gigabytes * rate / copy_gb_per_second if copy_gb_per_second else None,
    )


def switches_words(spec: Spec) -> str:
    """The level of a run's switches, and those that its spec names."""
    options = ", ".join(f"{name}={value}" for name, value in spec.framework_options.items())
    return f"{spec.switches}: {options}" if options else spec.switches
