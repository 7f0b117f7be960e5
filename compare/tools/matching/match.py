"""`convtwins match`: is a port the same model? If not, where do they differ first, and why?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from common.machine import environment
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
from compare.running import launch, options
from compare.tools.matching import dumps, match_words, model_comparison, pair_file, user_images
from compare.tools.matching.causes import BIASED_VARIANCE, Cause
from compare.tools.matching.corrections import correction
from compare.tools.matching.match_words import KNOWN_CAUSES
from compare.tools.matching.model_comparison import LayerPair, Match, ModelServer

NAME, RESULTS_FILE = "match", "match.json"
_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_LARGEST = 4096
STEPS = 20
"""Steps of training that are compared by default."""
_IN_ORDER = "PyTorch's, then Keras's"


def image_shape(text: str) -> tuple[int, int, int]:
    """Return (height, width, channels) of `28x28x1`."""
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and 0 < int(size) <= _LARGEST for size in sizes):
        raise SpecError(f"--input must be height x width x channels. Received: {text!r}. Use e.g. 28x28x1.")
    height, width, channels = map(int, sizes)
    return height, width, channels


@dataclass(frozen=True)
class MatchSettings:
    """Options on what both models are given."""

    image: tuple[int, int, int] | None
    classes: int | None
    steps: int | None
    weights: Sequence[str]
    prepare: tuple[str, str] | None
    loss: tuple[str, str] | None
    optimizer: tuple[str, str] | None
    data: str | None


@commands.command(within=document.errors_in_markdown)
def command(
    invocation: Invocation,
    *,
    net: Annotated[
        str,
        typer.Argument(metavar="PACKAGE.MODULE:NAME", help="A torch.nn.Module, its class, a function; or its dump, FILE.dump."),
    ],
    model: Annotated[
        str | None,
        typer.Argument(metavar="PACKAGE.MODULE:NAME", help="A keras.Model, its class, a function; or its dump, FILE.dump."),
    ] = None,
    input_shape: Annotated[
        tuple[int, int, int] | None,
        Parsed(image_shape),
        typer.Option("--input", metavar="HxWxC", help="Size of the images, e.g. 28x28x1. A dump has its own."),
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of outputs. A dump has its own.")] = None,
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
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_COMPARED_STEPS,
            help=f"{options.STEPS} At each, the losses are compared. Default: {STEPS}, or those of a dump.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help=f"Images and labels in the place of random ones: {options.DATA}")
    ] = None,
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
    dump: Annotated[
        Path | None,
        typer.Option(metavar=f"FILE{dumps.SUFFIX}", help="Keep one model's half of the comparison for another machine."),
    ] = None,
    markdown: options.Markdown = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Compare a PyTorch model with its Keras port: weights copied, outputs, gradients, steps; exit code 1 where they part."""
    dumps.check(dump)
    if write is not None:
        pair_file.check(write, own_input=prepare is not None, own_loss=loss is not None)
        if model is None or any(map(dumps.is_dump, (net, model))):
            raise SpecError("--write needs both models here, and no dump. Leave it out, or name two models.")
    FolderKind[None](noun="match", file=RESULTS_FILE).check(out)
    work = f"Comparing {net} with {model}" if model is not None else f"Recording {net}"
    typer.echo(f"{work}. This may take minutes.", err=True)
    if model is None:
        if maps or as_built or accept:
            raise SpecError("--map, --as-built and --accept compare two models. Received: one. Leave them out.")
        settings = MatchSettings(input_shape, classes, steps, weights or [], prepare, loss, optimizer, data)
        half_report = _half_report(record(net, settings, dump, invocation.progress.tell))
        return Outcome(half_report, out, functools.partial(half_report.append_to, markdown))
    result = match(
        net, model, image=input_shape, classes=classes, weights=weights or [], maps=maps or [], as_built=as_built, steps=steps,
        prepare=prepare, loss=loss, optimizer=optimizer, accept=accept, data=data, dump=dump, progress=invocation.progress.tell,
    )  # fmt: skip
    refused: SpecError | None = None
    written: list[str] = []
    try:
        if write is not None:
            written = pair_file.write(result, write)
    except SpecError as error:  # the answer is delivered all the same
        refused = error
    dumped = [] if dump is None else [*dumps.size_words(dump, result.requests[1]), f"Compare again: match {net} {dump}."]
    whole_report = report(result, sys.argv[1:], written, dumped)

    def finish(code: int) -> int:
        if refused is not None:
            raise refused
        return whole_report.append_to(markdown, code)

    return Outcome(whole_report, out, finish)


def match(
    net: str | type,
    model: str | type,
    *,
    image: tuple[int, int, int] | None = None,
    classes: int | None = None,
    weights: Sequence[str] = (),
    maps: Sequence[str] = (),
    as_built: bool = False,
    steps: int | None = None,
    prepare: tuple[str, str] | None = None,
    loss: tuple[str, str] | None = None,
    optimizer: tuple[str, str] | None = None,
    accept: Sequence[str] = (),
    data: str | None = None,
    dump: Path | None = None,
    processes: tuple[ModelServer, ModelServer] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Match:
    """Compare a PyTorch model with its Keras port, each in a process of its own. The options are those of `convtwins match`.

    Args:
        net: `package.module:name` of a torch.nn.Module, its class, or a function; the class itself; or a dump.
        model: `package.module:name` of a keras.Model, its class, or a function; the class itself; or a dump.
        image: (height, width, channels). None: those of a dump.
        classes: number of outputs. None: that of a dump.
        steps: number of steps of training. None: 20, or that of a dump.
        data: images and labels in the place of random ones.
        dump: file that keeps the half of the Keras model, if the PyTorch model is a dump.
        processes: running processes. None: they are started and ended here.
        progress: called with a line when a stage begins and when a rung ends. Default: no output.

    Returns:
        `same` and `holds` are the answer, `sentences` explain it, `rungs` and `lines` are its tables. Printed, it is the answer
        and a line for each rung.
    """
    names = _importable(net), _importable(model)
    accepted = parse_choices("--accept", accept, tuple(KNOWN_CAUSES)) if accept else []
    user_pairs = dict(map(_pair, maps))
    if dump is not None and not (dumps.is_dump(names[0]) and not dumps.is_dump(names[1])):
        raise SpecError(
            f"--dump keeps one model's half. Received: {' and '.join(names)}. Name the PyTorch model alone, or its dump and "
            "the Keras model."
        )
    with ExitStack() as stack:
        folder = stack.enter_context(PrivateFolder()).path
        halves = _halves(names)
        settings = MatchSettings(image, classes, steps, weights, prepare, loss, optimizer, data)
        requests = _requests(names, halves, settings, folder)
        if processes is None:
            started = _start(halves, folder, stack)
        else:
            started = halves[0] or processes[0], halves[1] or processes[1]
        versions = _versions(halves)
        recorded = dumps.AnswerRecorder(started[1], versions[1])
        servers = (started[0], recorded) if dump is not None else started
        result = model_comparison.match(
            servers, (requests[0], requests[1]), user_pairs, accepted, as_built=as_built, progress=progress
        )
        if dump is not None:
            progress("measuring what the comparison did not ask for ...")
            recorded.save(dump, requests[1])
        return replace(result, versions=versions)


Halves = tuple[dumps.DumpedModel | None, dumps.DumpedModel | None]


def record(
    net: str | type,
    settings: MatchSettings,
    dump: Path | None,
    progress: Callable[[str], None] = lambda text: None,
    process: ModelServer | None = None,
) -> tuple[OpenRequest, list[str]]:
    """Run a PyTorch model alone, and keep its half of a match. The options are those of `match`.

    Returns:
        (the request that opened the model, sentences on what was written).
    """
    name = _importable(net)
    if dump is None or dumps.is_dump(name):
        raise SpecError(
            f"match compares two models. Received: {name} alone. Give its Keras port too, or keep the half of a PyTorch model "
            "for another machine with --dump FILE.dump."
        )
    with ExitStack() as stack:
        folder = stack.enter_context(PrivateFolder()).path
        (request,) = _requests((name,), (None,), settings, folder)
        started = process or model_comparison.start_process(next(iter(launch.FRAMEWORKS)), folder, stack)
        recorded = dumps.AnswerRecorder(started, _versions((None,))[0])
        for words, message in (("opening the model", {"open": request.model_dump()}), ("measuring it", {"measure": None})):
            progress(f"{words} ...")
            recorded.send(message)
            recorded.answer()
        progress("measuring it far from the usual values ...")
        recorded.save(dump, request)
    there = f"Copy it to the machine of the Keras model. There: match {dump.name} PACKAGE.MODULE:NAME."
    return request, [*dumps.size_words(dump, request), there]


def _half_report(half: tuple[OpenRequest, list[str]]) -> Report:
    request, sentences = half
    return Report(
        title="One model's half of a match",
        name=NAME,
        json_file=RESULTS_FILE,
        facts=[f"pytorch: {request.model}"],
        findings=[("The dump", sentences)],
        values={"model": request.model},
    )


def _halves(names: Sequence[str]) -> Halves:
    """Open the dumps among two names."""
    first, second = (dumps.DumpedModel(Path(name)) if dumps.is_dump(name) else None for name in names)
    if first is not None and second is not None and first.framework == second.framework:
        raise SpecError(
            f"Both dumps are of {first.framework}. Received: {first.path} and {second.path}. Name one of each framework: the "
            "first of pytorch, the second of tensorflow."
        )
    for half, framework, place in zip((first, second), launch.FRAMEWORKS, ("first", "second"), strict=True):
        if half is not None and half.framework != framework:
            raise SpecError(f"{half.path} is a dump of {half.framework}, and the {place} model is {framework}'s. Swap the two.")
    return first, second


def _start(halves: Halves, folder: Path, stack: ExitStack) -> tuple[ModelServer, ModelServer]:
    """Start the processes of the models that are no dumps."""
    first, second = (
        half or model_comparison.start_process(framework, folder, stack)
        for half, framework in zip(halves, launch.FRAMEWORKS, strict=True)
    )
    return first, second


def _versions(halves: Sequence[dumps.DumpedModel | None]) -> tuple[Mapping[str, str | None], ...]:
    return tuple(
        half.versions if half else environment.framework_versions(package)
        for half, package in zip(halves, launch.FRAMEWORKS.values(), strict=False)
    )


def _requests(
    names: Sequence[str], halves: Sequence[dumps.DumpedModel | None], settings: MatchSettings, folder: Path
) -> tuple[OpenRequest, ...]:
    """Check names and settings, and return the requests that open the models."""
    dumped = [half.request(folder) if half else None for half in halves]
    base = next(filter(None, dumped), None)
    steps = STEPS if settings.steps is None else settings.steps
    given = {"--input": settings.image, "--classes": settings.classes, "--steps": settings.steps, "--data": settings.data}
    if base is not None:
        half = next(filter(None, halves))
        if chosen := [option for option, value in given.items() if value is not None]:
            raise SpecError(f"{half.path} holds its own {chosen[0]}. Received: {given[chosen[0]]}. Leave it out.")
    else:
        if missing := [option for option in ("--input", "--classes") if given[option] is None]:
            raise SpecError(f"match needs {' and '.join(missing)}. Use e.g. --input 28x28x1 --classes 10.")
        _check_numbers(settings.image, settings.classes, steps)
    functions = [settings.prepare, settings.loss, settings.optimizer]
    live = [place for place, half in enumerate(halves) if half is None]
    used = [names[place] for place in live] + [pair[place] for pair in functions if pair for place in live]
    for name in used:
        _check_form(name)
    files = _weights(settings.weights, dumped[0])
    for name in used:
        _check_exists(name)
    if len(live) == 2:
        _check_order(names[0], names[1])
    if base is None:
        assert settings.image is not None and settings.classes is not None
        base = OpenRequest(model="", image=settings.image, classes=settings.classes, steps=steps)
        if settings.data is not None:
            base = user_images.stored(base, settings.data, folder)

    def request(place: int) -> OpenRequest:
        prepare, loss, optimizer = (pair and pair[place] for pair in functions)
        update = {"model": names[place], "weights": files[place], "prepare": prepare, "loss": loss, "optimizer": optimizer}
        return dumped[place] or base.model_copy(update=update)

    requests = tuple(map(request, range(len(names))))
    if any(halves) and len(requests) == 2:
        dumps.check_same_request((requests[0], requests[1]), (names[0], names[1]))
    return requests


def _check_form(name: str) -> None:
    """Refuse what is no `package.module:name`, with what the file that it may mean defines."""
    module, _, attribute = name.partition(":")
    is_file = module.endswith(".py")
    if module and not is_file and attribute.isidentifier():
        return
    file = Path(module if is_file else f"{module.replace('.', '/') or 'net'}.py")
    defined, _ = user_code.describe_text(file)
    is_below = not file.is_absolute() and ".." not in file.parts
    address = ".".join(file.with_suffix("").parts) if is_below else file.stem
    examples = [f"{address or 'net'}:{known}" for known in ([attribute] if attribute.isidentifier() else defined or ["Net"])]
    raise SpecError(
        f"A model or function is named package.module:name. Received: {name!r}{', a file' * is_file}. Use e.g. "
        f"{wording.listed(examples, MAX_NAMED)}{'' if is_below else f', and start in {file.parent}'}."
    )


def _check_order(net: str, model: str) -> None:
    """Refuse models that are swapped, by what their modules import. Nothing is imported."""
    imported = [user_code.describe_text(file)[1] if (file := _file_of(name)) else set[str]() for name in (net, model)]
    packages = [{*environment.framework_versions(package)} for package in launch.FRAMEWORKS.values()]
    wrong = [sorted(packages[1] & imported[0]), sorted(packages[0] & imported[1])]
    if all(wrong) and packages[0].isdisjoint(imported[0]) and packages[1].isdisjoint(imported[1]):
        first, second = wrong[0][0], wrong[1][0]
        raise SpecError(
            f"PyTorch's model comes first, then its Keras port. Received: {net}, which imports {first}, and {model}, which "
            f"imports {second}. Use match {model} {net}."
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
    if (file := _file_of(name)) is not None:
        user_code.refuse_absent(name, file)


def _file_of(name: str) -> Path | None:
    """Return the file of a module, if it is one of Python. A module that is not here is refused."""
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
    file = user_code.file_of(place, here)
    return file if file is not None and file.suffix == ".py" else None


def _check_numbers(image: object, classes: object, steps: object) -> None:
    """Refuse numbers that the command line would refuse."""
    sizes = [*image] if isinstance(image, (tuple, list)) else []
    if len(sizes) != 3 or not all(type(size) is int and 0 < size <= _LARGEST for size in sizes):
        raise SpecError(f"image must be (height, width, channels). Received: {image!r}. Use e.g. (28, 28, 1).")
    if type(classes) is not int or classes < 2:
        raise SpecError(f"classes must be the number of outputs, 2 or more. Received: {classes!r}.")
    if type(steps) is not int or not 1 <= steps <= options.MOST_COMPARED_STEPS:
        raise SpecError(f"steps must be 1 to {options.MOST_COMPARED_STEPS:,}. Received: {steps!r}.")


def _weights(files: Sequence[str], dumped: OpenRequest | None) -> tuple[str | None, str | None]:
    """Return the files of both models. `dumped`: the request of a dump of the PyTorch model."""
    torch = [str(Path(file).resolve()) for file in files if file.endswith(_TORCH_SUFFIXES)]
    keras = [str(Path(file).resolve()) for file in files if file.endswith(".weights.h5")]
    for file in files:
        if not Path(file).is_file():
            raise SpecError(f"--weights names no file. Received: {file}.")
    if len(torch) + len(keras) != len(files) or len(torch) > 1 or len(keras) > 1:
        raise SpecError(f"--weights takes one .pt and one .weights.h5. Received: {', '.join(files)}.")
    if torch and dumped:
        raise SpecError(f"The PyTorch model is a dump, and has its weights. Received: --weights {torch[0]}. Leave it out.")
    if keras and not (torch or (dumped and dumped.weights)):
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
    Column("at", "at"),
    Column("size", "by itself", -1),
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


def _images_words(request: OpenRequest) -> str:
    of_data = f" of {request.data_name}" if request.data_name else ""
    return f"images {'x'.join(map(str, request.image))}{of_data}"


MAX_NAMED = 3
"""Number of layers that the first screen names. It counts the others."""
MAX_CAUSES = 6
"""Number of causes that the first screen has a line for. It counts the others."""
_LABELS = {"same": "Same", "not the same": "Not the same", "cannot tell": "Cannot tell"}


def report(result: Match, words: Sequence[str], written: Sequence[str] = (), dumped: Sequence[str] = ()) -> Report:
    """Build the report of a match. `written`: sentences on `--write`. `dumped`: sentences on `--dump`."""
    causes = [cause for rung in result.rungs for cause in rung.all_causes]
    verdict = "same" if result.holds else "not the same"
    if result.holds and not result.same:
        verdict += f" but for {match_words.TOLERATED[result.tolerated_difference]}"
    if verdict == "not the same" and all(rung.status != model_comparison.FAILED for rung in result.rungs):
        verdict = "cannot tell"
    return Report(
        title="Is my port the same?",
        name=NAME,
        json_file=RESULTS_FILE,
        facts=[
            f"{result.names[0]}: {result.requests[0].model}; {result.names[1]}: {result.requests[1].model}",
            f"{_images_words(result.requests[0])}, {wording.count(result.requests[0].steps, 'step')} in float64",
        ],
        marks=[Mark("Same model", verdict, "good" if result.holds else "bad")],
        findings=[
            ("Is it the same model?", result.sentences),
            ("What this match has evened out", [*map(match_words.note, result.notes)]),
            ("The pair as one model", list(written)),
            ("The dump", list(dumped)),
        ],
        tables=[
            Table.from_items("rungs", "Checks (rungs)", _RUNG_COLUMNS, result.rungs),
            Table.from_items("layers", "Layers, side by side", _layer_columns(result.names), result.lines, folds=True),
        ],
        detail_tables=[Table.from_items("causes", "Causes", _CAUSE_COLUMNS, causes)],
        environment=[
            (framework, wording.versions({name: version for name, version in versions.items() if version}))
            for framework, versions in zip(result.names, result.versions, strict=False)
        ],
        commands=[("This report:", f"{document.COMPARE} {wording.shell(words)}")] if words else [],
        values={
            "verdict": verdict,
            "same": result.same,
            "holds": result.holds,
            "rungs": [
                {**vars(rung), **{key: [*map(_plain, getattr(rung, key))] for key in ("causes", "behind")}}
                for rung in result.rungs
            ],
            "notes": [*map(_plain, result.notes)],
            "versions": dict(zip(result.names, map(dict, result.versions), strict=False)),
            "data": result.requests[0].data_name,
            "statements": result.statements,
        },
        exit_code=0 if result.holds else exits.RUN_FAILED,
        screen=_screen(result, verdict, written, dumped),
    )


def _screen(result: Match, verdict: str, written: Sequence[str], dumped: Sequence[str]) -> Screen:
    """Build the first screen: same or not, the causes by name, and the lines to change."""
    request, rungs = result.requests[0], result.primary_rungs
    first = min(rungs, key=lambda rung: rung.status != model_comparison.FAILED, default=None)
    named = [cause for rung in rungs for cause in rung.all_causes]
    causes = {(cause.name, match_words.cause_sentence(cause), cause.at): cause for cause in named}
    lines = match_words.cause_lines(causes.values())
    if len(causes) == 1:
        (cause,) = causes.values()
        lines = [f"{cause.name}: {match_words.cause_sentence(cause)} {match_words.experiment(cause)}"]
    whys = lines[:MAX_CAUSES]
    if len(lines) > MAX_CAUSES:
        whys.append(f"and {wording.count(len(lines) - MAX_CAUSES, 'cause')} more ({FULL} lists all)")
    if first is not None and first.status == model_comparison.FAILED and not first.causes:
        whys.insert(0, "None of the known causes explains it.")
    between = [f"The fault lies {rung.between}." for rung in rungs if rung.between]
    tone = "good" if result.holds else "warn" if verdict == "cannot tell" else "bad"
    # First where it begins, then by how much its consequences differ.
    described = [*reversed(result.describe_rung(first))] if first else []
    answer_words = match_words.sentences([result.answer, *described])
    label = _LABELS.get(verdict, "Same, but")
    if result.only_biased_variance:
        label, tone = "Not accepted", "warn"
    others = result.unexplained_settings
    settings = f"Layers whose settings differ beside this: {wording.listed(others, MAX_NAMED)}."
    answers = (
        Paragraph(label, answer_words, tone, least=len(described)),
        Paragraph("Why", [*whys, *between], least=len(whys), most=len(whys) + len(between)),
        Paragraph("Settings", [settings] if others else []),
        Paragraph("Not compared", match_words.sentences(result.caveats)),
        Paragraph("The pair", written),
        Paragraph("The dump", dumped),
    )
    differing = [rung for rung in result.rungs if rung.status != model_comparison.PASSED]
    leading = [rung for rung in differing if rung.status != model_comparison.FOLLOWS]
    follow = f" ({len(differing) - len(leading)} follow from these)" if len(leading) < len(differing) else ""
    return Screen(
        subject=[
            "Is my port the same model?",
            *(f"{name}: {request.model}" for name, request in zip(result.names, result.requests, strict=True)),
            f"{_images_words(request)}, {wording.count(request.steps, 'step')} in float64",
        ],
        answers=answers,
        table=Table.from_items(
            "rungs", f"Checks that do not agree: {len(differing)} of {len(result.rungs)}{follow}", _SHORT_RUNG_COLUMNS, leading
        ),
        remarks=[match_words.note_line(cause) for cause in result.notes],
        next=_next(result, [*causes.values()], written),
    )


def _next(result: Match, causes: Sequence[Cause], written: Sequence[str]) -> list[tuple[str, str]]:
    """Return the next step: what to change, or what to do with a pair that matches."""
    if result.only_biased_variance:
        return [("let it pass", f"the same command with --accept {BIASED_VARIANCE}")]
    if not result.holds:
        places = list(dict.fromkeys(cause.where for cause in causes if cause.where))
        return [("lines to look at", "; ".join(places[:MAX_NAMED]))] if places else []
    return [("train both", "the same command with --write FOLDER/FILE.py")] if not written else []


def _plain(cause: Cause) -> dict[str, object]:
    return {**cause.facts(), "sentence": match_words.cause_sentence(cause), "correction": correction(cause)}
