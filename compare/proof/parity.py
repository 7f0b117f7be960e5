"""`python -m compare parity`: climb the ladder of proof and print it, one line a rung."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from common import spec
from common.data import sources
from common.spec import Spec, SpecError
from compare.core import exits
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen, each_once, names, variants
from compare.core.presets import Preset
from compare.execution import launch, store
from compare.execution.options import OPTIMIZERS
from compare.proof import ladder
from compare.proof.certificate import Proof, Rung


def command(
    model: Annotated[
        str, typer.Option(help=f"With commas: {', '.join(spec.MODELS)}, or package.module of your own.")
    ] = "simple_cnn",
    optimizer: Annotated[str, typer.Option(help="With commas: sgd (0.05, momentum 0.9), adam (1e-3).")] = "sgd,adam",
    steps: Annotated[int, typer.Option(min=1, help="Steps at which the losses are compared.")] = ladder.STEPS,
    precision: Annotated[str, typer.Option(help="float64 proves; float32 shows how rounding grows.")] = "float64",
    data: Annotated[str, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = "digits",
    image_size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    modes: Annotated[str, typer.Option(help=f"To compare with serial, of {', '.join(spec.VARIANTS)}; or all.")] = ",".join(
        Preset().modes
    ),
    replicas: Annotated[int, typer.Option(min=2, help="Replicas of those modes.")] = 2,
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="field=value of the spec.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep specs, recordings and logs here. Default: nothing is kept.")] = None,
    remember: Annotated[bool, typer.Option(help="Use a stored proof of the same code, versions and spec.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rungs as JSON.")] = False,
) -> None:
    """Prove that the frameworks and their parallel modes train the same; exit code 1 where a rung fails."""
    console = Console(stderr=True)
    with exits.reported():
        specs = [
            _spec(name, settings, data, image_size, precision, seed, assignments or [])
            for name, settings in itertools.product(
                each_once("--model", names(model), spec.MODELS), each_once("--optimizer", names(optimizer), tuple(OPTIMIZERS))
            )
        ]
        named = chosen("--frameworks", names(frameworks), tuple(launch.FRAMEWORKS))
        asked = variants(modes)
        if len(named) < 2 and asked == ["serial"]:
            raise SpecError(
                f"--frameworks has nothing to compare {named[0]} with. Received: one framework and no parallel mode. "
                "Name two frameworks, or a mode."
            )
        if out is not None:
            store.refuse_others(out, None, None, "proof", own=(*spec.MODELS, *(each.model for each in specs)))
        with interruptible(), tempfile.TemporaryDirectory(prefix="convtwins-proof-") as temporary:
            proofs = [
                ladder.prove(
                    each,
                    named,
                    asked,
                    replicas=replicas,
                    out=out or Path(temporary),
                    progress=lambda text: console.print(text, style="dim", highlight=False),
                    steps=steps,
                    precision=each.precision,
                    remember=remember,
                )
                for each in specs
            ]
    rungs = [rung for proof in proofs for rung in proof.rungs]
    if as_json:
        # By way of JSON, which has no word for an infinite difference.
        plain = [json.loads(rung.model_dump_json()) for rung in rungs]
        print(json.dumps({"verdict": _verdict(proofs), "rungs": plain}, indent=1))
    else:
        show(rungs, Console())
        for each, proof in zip(specs, proofs, strict=True):
            print(f"{each.model}, {each.optimizer.name}: {proof.sentence}")
    if _verdict(proofs) != "proved":
        raise typer.Exit(1)


def show(rungs: list[Rung], console: Console) -> None:
    """Print one line a rung: the largest difference, the step where it stood, the tolerance and its reason."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (
        ("rung", "left"),
        ("model", "left"),
        ("optimizer", "left"),
        ("largest difference", "right"),
        ("step", "right"),
        ("tolerance", "right"),
        ("", "left"),
        ("reason", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=column != "reason")  # pyright: ignore[reportArgumentType]
    for rung in rungs:
        name = rung.name if rung.framework is None else f"{rung.name}, {rung.framework}"
        step = "" if rung.step is None else f"{rung.step} of {rung.steps}"
        tolerance = "exact" if rung.tolerance == 0 else f"{rung.tolerance:.1e}"
        reason = rung.reason if rung.where is None else f"{rung.reason} ({rung.where})"
        difference = f"{rung.max_relative_difference:.1e}"
        table.add_row(name, rung.model, rung.optimizer, difference, step, tolerance, rung.status, reason)
    if not console.is_terminal:
        console.width = 220  # a file or a pipe has no edge to wrap at
    console.print(table, highlight=False)


def _spec(
    model: str, optimizer: str, data: str, image_size: int | None, precision: str, seed: int, assignments: list[str]
) -> Spec:
    if optimizer not in OPTIMIZERS:
        raise SpecError(f"--optimizer is unknown. Received: {optimizer!r}. Use {' or '.join(OPTIMIZERS)}.")
    if precision not in ("float32", "float64"):
        raise SpecError(f"--precision is unknown. Received: {precision!r}. Use float64 or float32.")
    values = {
        "model": model,
        "data": {"source": data, "image_size": image_size},
        "optimizer": OPTIMIZERS[optimizer],
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "precision": precision,
        "global_batch_size": ladder.BATCH_SIZE,  # the learning rate is meant for it
        "seed": seed,
    }
    return spec.build(spec.overlay(values, spec.parse_assignments(assignments)))


def _verdict(proofs: list[Proof]) -> str:
    return "proved" if all(proof.verdict == "proved" for proof in proofs) else "not proved"
