"""`convtwins convert`: write a trained model as a file of either framework's own, and back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from common.artifacts import atomic_files, trained
from common.artifacts.trained import SUFFIX, Card
from common.machine import plain_file
from common.machine.plain_file import PlainFileError
from common.machine.private_folder import PrivateFolder
from common.models.weights import WeightsError
from common.spec import SpecError
from compare.cli import commands
from compare.running import launch, twin_client
from compare.running.contestants import Contestant
from compare.running.twin_client import CustomModel
from compare.running.twins import Twins

CARD_SUFFIX = ".card.json"
"""Suffix of the card of a framework's own file. Such a file holds weights alone; the card holds the rest."""


@commands.command()
def command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A checkpoint (.safetensors), or a framework's own file.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file to write. Its suffix selects the form.")],
    like: Annotated[
        Path | None,
        typer.Option(metavar="CHECKPOINT", help="Has the model, classes and scaling of SRC, if no card is beside SRC."),
    ] = None,
    model: CustomModel = None,
) -> None:
    """Write a trained model in another form: the suite's .safetensors, or a framework's own file of weights."""
    card = convert(source, target, like=like, own_model=model)
    typer.echo(
        f"{target}: {card.model}, {len(card.class_names)} classes, {card.image_size} px, {card.precision}, trained in "
        f"{card.framework}, epoch {card.epoch}."
    )


def convert(source: Path, target: Path, *, like: Path | None = None, own_model: str | None = None) -> Card:
    """Write a trained model in another form. Each framework reads and writes its own files, in its process.

    Args:
        source: the file to read. Nothing in it is executed.
        target: the file to write, atomically. Its suffix selects the form.
        like: the checkpoint whose card describes a framework's own file. None: the card beside it.
        own_model: see `trained.load`.

    Returns:
        The card of the model.
    """
    if not source.is_file():
        raise WeightsError(f"{source} is not there, or no file. Use a checkpoint, or a framework's own file of weights.")
    if target.exists():
        raise SpecError(f"{target} is there already. Remove it, or choose another name.")
    reader, writer = _frameworks(source, target)
    if reader is writer is None:
        raise SpecError(f"Both are {SUFFIX} files. Received: {source} and {target}. Copy the file.")
    with PrivateFolder() as temporary:
        folder, checkpoint = temporary.path, source
        if reader is not None:
            checkpoint, card_file = folder / f"model{SUFFIX}", folder / "card.json"
            atomic_files.write_atomically(card_file, _card(source, like, own_model).model_dump_json(indent=1))
            words = ["read", source, "--card", card_file, "--out", checkpoint]
            twin_client.call(Contestant.plain(reader), [*words, *_model_option(own_model)], folder / "log.txt")
        trained_model = trained.load(checkpoint, own_model)
        if writer is None:
            trained.save(trained_model.card, trained_model.weights, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _check_space(target, sum(array.nbytes for array in trained_model.weights.values()))
            words = ["write", checkpoint, "--out", target, *twin_client.model_arguments(trained_model)]
            twin_client.call(Contestant.plain(writer), words, folder / "log.txt")
            atomic_files.write_atomically(_card_path(target), trained_model.card.model_dump_json(indent=1) + "\n")
    return trained_model.card


def _frameworks(*paths: Path) -> list[str | None]:
    """Return the framework of each file, by its suffix. None for the suite's own form."""
    if all(path.name.endswith(SUFFIX) for path in paths):
        return [None] * len(paths)
    with Twins(launch.FRAMEWORKS).describe_all() as answer:
        descriptions = {framework: answer(framework) for framework in launch.FRAMEWORKS}
    known: dict[str, str | None] = {SUFFIX: None}
    known |= {suffix: framework for framework, description in descriptions.items() for suffix in description["formats"]}
    frameworks: list[str | None] = []
    for path in paths:
        suffixes = [suffix for suffix in known if path.name.endswith(suffix)]
        if not suffixes:
            raise SpecError(f"{path} has an unknown suffix. Received: {path.name!r}. Use {', '.join(known)}.")
        frameworks.append(known[suffixes[0]])
    return frameworks


def _check_space(target: Path, needed: int) -> None:
    """Check the free space. Done here, because a framework may die by a signal if the disk is full."""
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise WeightsError(f"{target} takes {needed:,} bytes at least, and {free:,} are free there. Free more.")


def _card(source: Path, like: Path | None, own_model: str | None) -> Card:
    if like is not None:
        return trained.load(like, own_model).card
    path = _card_path(source)
    try:
        return trained.card_from(plain_file.read(path, trained.MOST_CARD_BYTES), path)
    except PlainFileError as error:
        raise WeightsError(f"{error}. Say with --like CHECKPOINT whose model, classes and scaling it has.") from None
    except OSError:
        raise WeightsError(
            f"{source} holds weights alone, and {path.name} is not beside it. Say with --like CHECKPOINT whose model, classes "
            "and scaling it has."
        ) from None


def _card_path(path: Path) -> Path:
    return path.with_name(path.name + CARD_SUFFIX)


def _model_option(model: str | None) -> list[str]:
    return [] if model is None else ["--model", model]
