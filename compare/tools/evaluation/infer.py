"""`convtwins infer`: how fast a trained model answers in each framework. The frameworks alternate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.artifacts import trained
from common.machine import machine
from common.training import inference
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Integers
from compare.results import store
from compare.results.workspace import Workspace
from compare.running import options
from compare.running.twin_client import CustomModel
from compare.tools.evaluation import inference_report, inference_timing
from compare.tools.evaluation.inference_timing import InferenceSettings

BATCHES = tuple(2**power for power in range(9))


@commands.command()
def command(
    invocation: Invocation,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A trained model (best.safetensors of a run).")],
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    batches: Annotated[tuple[int, ...], Integers(least=1), typer.Option(help="Images of a call, with commas.")] = BATCHES,
    cores: Annotated[
        tuple[int, ...] | None,
        Integers(least=1),
        typer.Option(help=f"{options.CORES} Several numbers, with commas, make rows of each. Default: 1 and all."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help=f"{options.REPEATS} Each time in a process of its own. Verdicts need 5.")
    ] = 5,
    calls: Annotated[int, typer.Option(min=inference.LEAST_CALLS, help=f"{options.CALLS} Of each batch size, at most.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.001, help="No call of a batch size begins after this time.")] = 3.0,
    model: CustomModel = None,
    out: options.Out = None,
) -> Outcome:
    """Time how fast a trained model answers: latency and throughput by batch size, frameworks in turns, fresh processes."""
    trained_model = trained.load(checkpoint, model)
    settings = InferenceSettings(
        frameworks=frameworks,
        batches=batches,
        cores=cores or tuple(sorted({1, machine.available_cores()})),
        repeats=repeats,
        calls=calls,
        seconds=seconds,
    )
    folder = out or store.new_folder("infer", trained_model.card.model)
    invocation.interrupt_message = f"Interrupted. The same command with {wording.shell(['--out', str(folder)])} goes on."
    workspace = invocation.hold(Workspace.open(folder, inference_timing.INFERENCE))
    record = inference_timing.measure(settings, checkpoint, trained_model, workspace, invocation.progress)
    return Outcome(inference_report.report(record), folder)
