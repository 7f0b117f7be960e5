"""`convtwins match`: is a port the same model? If not, where do they differ first, and why?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.matching.records import OpenRequest
from common.models import user_code
from common.spec import SpecError
from compare.cli import commands, exits, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_parsing import parse_choices
from compare.cli.option_types import Names, Parsed
from compare.cli.terminal import FULL
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.results.workspace import FolderKind
from compare.running import options
from compare.tools.matching import match_words, model_comparison, pair_file
from compare.tools.matching.causes import BIASED_VARIANCE, Cause
from compare.tools.matching.match_words import KNOWN_CAUSES
from compare.tools.matching.model_comparison import LayerPair, Match

NAME, RESULTS_FILE = "match", "match.json"
_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_LARGEST = 4096
_IN_ORDER = "PyTorch's, then Keras's"


def image_shape(text: str) -> tuple[int, int, int]:
    """Return (height, width, channels) of `28x28x1`."""
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and 0 < int(size) <= _LARGEST for size in sizes):
        raise SpecError(f"--input must be height x width x channels. Received: {text!r}. Use e.g. 28x28x1.")
    height, width, channels = map(int, sizes)
    return height, width, channels


@commands.command()
def command(
    invocation: Invocation,
    *,
    net: Annotated[str, typer.Argument(metavar="PACKAGE.MODULE:NAME", help="A torch.nn.Module, its class, or a function.")],
    model: Annotated[str, typer.Argument(metavar="PACKAGE.MODULE:NAME", help="A keras.Model, its class, or a function.")],
    input_shape: Annotated[
        tuple[int, int, int],
        Parsed(image_shape),
        typer.Option("--input", metavar="HxWxC", help="Size of the images, e.g. 28x28x1."),
    ],
    classes: Annotated[int, typer.Option(min=2, help="Number of outputs.")],
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A state_dict (.pt) to copy; and with the port's own .weights.h5: compared, not copied."
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="TORCH=KERAS", help="Layers that stand for each other. May be repeated."),
    ] = None,
    as_built: Annotated[bool, typer.Option("--as-built", help="Compare weights as both are built, and copy none.")] = False,
    steps: Annotated[
        int, typer.Option(min=1, max=options.MOST_COMPARED_STEPS, help=f"{options.STEPS} At each, the losses are compared.")
    ] = 20,
    prepare: Annotated[tuple[str, str] | None, typer.Option(help=f"Functions from uint8 images: {_IN_ORDER}.")] = None,
    loss: Annotated[
        tuple[str, str] | None, typer.Option(help=f"Losses: {_IN_ORDER}. Default: cross-entropy of logits.")
    ] = None,
    optimizer: Annotated[tuple[str, str] | None, typer.Option(help=f"Functions that make optimizers: {_IN_ORDER}.")] = None,
    accept: Annotated[
        tuple[str, ...], Names(), typer.Option(metavar="CAUSE,...", help="Causes that do not count, e.g. biased-variance.")
    ] = (),
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER/FILE.py", help="Write the pair as a model that `run --model` takes.")
    ] = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Compare a PyTorch model with its Keras port: weights copied, outputs, gradients, steps; exit code 1 where they part."""
    if write is not None:
        pair_file.check(write, own_input=prepare is not None, own_loss=loss is not None)
    FolderKind[None](noun="match", file=RESULTS_FILE).check(out)
    typer.echo(f"Comparing {net} with {model}. This may take minutes.", err=True)
    result = match(
        net, model, image=input_shape, classes=classes, weights=weights or [], maps=maps or [],
        as_built=as_built, steps=steps, prepare=prepare, loss=loss, optimizer=optimizer, accept=accept,
        progress=invocation.progress.tell,
    )  # fmt: skip
    refused: SpecError | None = None
    written: list[str] = []
    try:
        if write is not None:
            written = pair_file.write(result, write)
    except SpecError as error:  # the answer is delivered all the same
        refused = error

    def finish(code: int) -> int:
        if refused is not None:
            raise refused
        return code

    return Outcome(report(result, sys.argv[1:], written), out, finish)


def match(
    net: str | type,
    model: str | type,
    *,
    image: tuple[int, int, int],
    classes: int,
    weights: Sequence[str] = (),
    maps: Sequence[str] = (),
    as_built: bool = False,
    steps: int = 20,
    prepare: tuple[str, str] | None = None,
    loss: tuple[str, str] | None = None,
    optimizer: tuple[str, str] | None = None,
    accept: Sequence[str] = (),
    processes: tuple[model_comparison.ModelProcess, model_comparison.ModelProcess] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Match:
    """Compare a PyTorch model with its Keras port, each in a process of its own. The options are those of `convtwins match`.

    Args:
        net: `package.module:name` of a torch.nn.Module, its class, or a function; or the class itself.
        model: `package.module:name` of a keras.Model, its class, or a function; or the class itself.
        image: (height, width, channels).
        classes: number of outputs.
        processes: running processes. None: they are started and ended here.
        progress: called with a line when a stage begins and when a rung ends. Default: no output.

    Returns:
        `same` and `holds` are the answer, `sentences` explain it, `rungs` and `lines` are its tables. Printed, it is the answer
        and a line for each rung.
    """
    _check_numbers(image, classes, steps)
    models = _importable(net), _importable(model)
    accepted = parse_choices("--accept", accept, tuple(KNOWN_CAUSES)) if accept else []
    for name in (*models, *(prepare or ()), *(loss or ()), *(optimizer or ())):
        module, _, attribute = name.partition(":")
        if not module or not attribute.isidentifier():
            raise SpecError(f"A model or function is named package.module:name. Received: {name!r}. Use e.g. net:Net.")
    files = _weights(weights)
    requests = tuple(
        OpenRequest(
            model=models[place], image=image, classes=classes, steps=steps, weights=files[place],
            prepare=prepare and prepare[place], loss=loss and loss[place], optimizer=optimizer and optimizer[place],
        )
        for place in (0, 1)
    )  # fmt: skip
    user_pairs = [_pair(pair_text) for pair_text in maps]
    for name in (*models, *(prepare or ()), *(loss or ()), *(optimizer or ())):
        _check_exists(name)
    if processes is not None:
        return model_comparison.match(
            processes, (requests[0], requests[1]), dict(user_pairs), accepted, as_built=as_built, progress=progress
        )
    with PrivateFolder() as folder, model_comparison.start_processes(folder.path) as processes:
        return model_comparison.match(
            processes, (requests[0], requests[1]), dict(user_pairs), accepted, as_built=as_built, progress=progress
        )


def _importable(model: str | type) -> str:
    if isinstance(model, str):
        return model
    if model.__module__ == "__main__":
        raise SpecError(
            f"{model.__qualname__} is defined in the notebook. Another process cannot import it. Move it to a file."
        )
    return f"{model.__module__}:{model.__qualname__}"


def _check_exists(name: str) -> None:
    """Refuse a name that a process would not find. Nothing is imported, since it may import a framework."""
    place = name.partition(":")[0]
    top = place.partition(".")[0]
    if not top:
        raise SpecError(f"A model is package.module:name. Received: {name!r}.")
    here = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    # Packages that are installed in editable form have a finder of their own.
    here = here or next(filter(None, (finder.find_spec(top, None) for finder in sys.meta_path)), None)
    if here is None:
        raise SpecError(
            f"There is no module {top} here. Received: {name!r}. Start where it lies, or put its folder on PYTHONPATH."
        )
    if (file := user_code.file_of(place, here)) is not None and file.suffix == ".py":
        user_code.refuse_absent(name, file)


def _check_numbers(image: object, classes: object, steps: object) -> None:
    """Refuse numbers that the command line would refuse."""
    sizes = [*image] if isinstance(image, (tuple, list)) else []
    if len(sizes) != 3 or not all(type(size) is int and 0 < size <= _LARGEST for size in sizes):
        raise SpecError(f"image must be (height, width, channels). Received: {image!r}. Use e.g. (28, 28, 1).")
    if type(classes) is not int or classes < 2:
        raise SpecError(f"classes must be the number of outputs, 2 or more. Received: {classes!r}.")
    if type(steps) is not int or not 1 <= steps <= options.MOST_COMPARED_STEPS:
        raise SpecError(f"steps must be 1 to {options.MOST_COMPARED_STEPS:,}. Received: {steps!r}.")


def _weights(files: Sequence[str]) -> tuple[str | None, str | None]:
    torch = [str(Path(file).resolve()) for file in files if file.endswith(_TORCH_SUFFIXES)]
    keras = [str(Path(file).resolve()) for file in files if file.endswith(".weights.h5")]
    for file in files:
        if not Path(file).is_file():
            raise SpecError(f"--weights names no file. Received: {file}.")
    if len(torch) + len(keras) != len(files) or len(torch) > 1 or len(keras) > 1:
        raise SpecError(f"--weights takes one .pt and one .weights.h5. Received: {', '.join(files)}.")
    if keras and not torch:
        raise SpecError(f"--weights copies PyTorch's weights to Keras. Received: {keras[0]} alone. Give the .pt file too.")
    return (torch or [None])[0], (keras or [None])[0]


def _pair(text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise SpecError(f"--map must be torch.name=keras.name. Received: {text!r}.")
    return left, right


_RUNG_COLUMNS = (
    Column("rung", "check", pick="name"),
    Column("difference", "largest difference", -1, short="differs"),
    Column("tolerance", "tolerance", pick=lambda rung: "exact" if rung.tolerance == 0 else f"{rung.tolerance:.0e}"),
    Column("status", "status"),
    Column("where", "where"),
)
_SHORT_RUNG_COLUMNS = tuple(column for column in _RUNG_COLUMNS if column.key != "where")
_CAUSE_COLUMNS = (
    Column("cause", "cause", pick="name"),
    Column("sentence", "what", pick=match_words.cause_sentence),
    Column("verified", "experiment", pick=match_words.experiment),
    Column("where", "file and line"),
)


def _shape(side: str) -> Column:
    def pick(line: LayerPair) -> str:
        layer = line.left if side == "left" else line.right
        return "" if layer is None else "x".join(map(str, layer.output))

    return Column(f"{side}_shape", "output", pick=pick, wide=True)


def _layer_columns(sides: tuple[str, str]) -> tuple[Column, ...]:
    return (
        Column("left", f"{sides[0]}: layer", pick="left.name"),
        _shape("left"),
        Column("right", f"{sides[1]}: layer", pick="right.name"),
        _shape("right"),
        Column("inference", "differs", -1),
        Column("training", "in training", -1),
        Column("settings", "other settings"),
        Column("left_where", f"{sides[0]}: line", pick="left.where", terminal=False),
        Column("right_where", f"{sides[1]}: line", pick="right.where", terminal=False),
    )


MAX_NAMED = 3
"""Number of causes and layers that the first screen names. It counts the others."""
_LABELS = {"same": "Same", "not the same": "Not the same", "cannot tell": "Cannot tell"}


def report(result: Match, words: Sequence[str], written: Sequence[str] = ()) -> Report:
    """Build the report of a match. `written`: sentences on `--write`."""
    causes = [cause for rung in result.rungs for cause in rung.causes]
    verdict = "same" if result.holds else "not the same"
    if result.holds and not result.same:
        verdict += f" but for {match_words.TOLERATED[result.tolerated_difference]}"
    if verdict == "not the same" and all(rung.status != model_comparison.FAILED for rung in result.rungs):
        verdict = "cannot tell"
    return Report(
        title="Is my port the same?",
        name=NAME,
        json_file=RESULTS_FILE,
        facts=[f"{result.names[0]}: {result.requests[0].model}; {result.names[1]}: {result.requests[1].model}"],
        marks=[Mark("Same model", verdict, "good" if result.holds else "bad")],
        findings=[
            ("Is it the same model?", result.sentences),
            ("What this match has evened out", [*map(match_words.note, result.notes)]),
            ("The pair as one model", list(written)),
        ],
        tables=[
            Table.from_items("rungs", "Checks (rungs)", _RUNG_COLUMNS, result.rungs),
            Table.from_items("layers", "Layers, side by side", _layer_columns(result.names), result.lines),
        ],
        detail_tables=[Table.from_items("causes", "Causes", _CAUSE_COLUMNS, causes)],
        commands=[("This report:", f"{document.COMPARE} {wording.shell(words)}")] if words else [],
        values={
            "verdict": verdict,
            "same": result.same,
            "holds": result.holds,
            "rungs": [{**vars(rung), "causes": [*map(_plain, rung.causes)]} for rung in result.rungs],
            "notes": [*map(_plain, result.notes)],
            "statements": result.statements,
        },
        exit_code=0 if result.holds else exits.RUN_FAILED,
        screen=_screen(result, verdict, written),
    )


def _screen(result: Match, verdict: str, written: Sequence[str]) -> Screen:
    """Build the first screen: same or not, the causes by name, and the lines to change."""
    request, rungs = result.requests[0], result.primary_rungs
    first = min(rungs, key=lambda rung: rung.status != model_comparison.FAILED, default=None)
    causes = {(cause.name, match_words.cause_sentence(cause)): cause for rung in rungs for cause in rung.causes}
    whys = [f"{name}: {sentence} {match_words.experiment(cause)}" for (name, sentence), cause in [*causes.items()][:MAX_NAMED]]
    if len(causes) > MAX_NAMED:
        whys.append(f"and {wording.count(len(causes) - MAX_NAMED, 'cause')} more ({FULL} lists all)")
    if first is not None and first.status == model_comparison.FAILED and not first.causes:
        whys.insert(0, "None of the known causes explains it.")
    between = [f"The fault lies {rung.between}." for rung in rungs if rung.between]
    tone = "good" if result.holds else "warn" if verdict == "cannot tell" else "bad"
    answer_words = match_words.sentences([result.answer, *(result.describe_rung(first) if first else [])])
    answers = (
        Paragraph(_LABELS.get(verdict, "Same, but"), answer_words, tone),
        Paragraph("Why", [*whys, *between]),
        Paragraph("Settings", [wording.listed(result.settings_differences, MAX_NAMED)] if result.settings_differences else []),
        Paragraph("Not compared", match_words.sentences(result.caveats)),
        Paragraph("The pair", written),
    )
    differing = [rung for rung in result.rungs if rung.status != model_comparison.PASSED]
    removed = wording.listed([cause.name for cause in result.notes], MAX_NAMED)
    return Screen(
        subject=[
            "Is my port the same model?",
            *(f"{name}: {request.model}" for name, request in zip(result.names, result.requests, strict=True)),
            f"images {'x'.join(map(str, request.image))}, {wording.count(request.steps, 'step')} in float64",
        ],
        answers=answers,
        table=Table.from_items(
            "rungs", f"Checks that do not agree: {len(differing)} of {len(result.rungs)}", _SHORT_RUNG_COLUMNS, differing
        ),
        remarks=[f"This match has evened out: {removed} ({FULL} says how)."] if result.notes else [],
        next=_next(result, [*causes.values()], written),
    )


def _next(result: Match, causes: Sequence[Cause], written: Sequence[str]) -> list[tuple[str, str]]:
    """Return the next step: what to change, or what to do with a pair that matches."""
    if result.only_biased_variance:
        return [("let it pass", f"the same command with --accept {BIASED_VARIANCE}")]
    if not result.holds:
        places = list(dict.fromkeys(cause.where for cause in causes if cause.where))
        return [("look at", place) for place in places[:MAX_NAMED]]
    return [("train both", "the same command with --write FOLDER/FILE.py")] if not written else []


def _plain(cause: Cause) -> dict[str, object]:
    return {**cause.facts(), "sentence": match_words.cause_sentence(cause)}
