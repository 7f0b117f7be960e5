"""The process that reads a set with torchvision, TensorFlow Datasets or Hugging Face's datasets, and writes an archive of it.

One package a process: TensorFlow and torchvision in one crash. Image files are kept as they are. Pixels become PNG files. The
file is run by its path, and imports nothing of the suite, so that an environment of its own may run it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import io
import json
import operator
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

PYTHON = "CONVTWINS_DATASETS_PYTHON"
"""Variable with the interpreter that reads the sets. Default: the suite's interpreter."""

_COPIED_FORMATS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png"}
"""First bytes of image files that are copied unchanged."""
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_SPLITS = {
    "train": ("train", "trainval", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
"""Names of the splits in the packages. The first that a set has counts."""
_MAX_TEXT_LENGTH = 200
_MAX_NAMED = 20
_MIN_DATASETS_MAJOR = 4
"""The first major version of `datasets` that runs no code of a set."""


class Refused(Exception):
    """The message names the source, what was received, and what to do."""


def join_names(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + suffix


class SetRequest(NamedTuple):
    """The request for a set, as `public_sets` sends it."""

    source: str
    package: str
    module: str
    name: str
    path: str | None
    download: bool
    settings: dict[str, str]
    out: str

    def refusal(self, problem: str, received: object, advice: str) -> Refused:
        full_stop = "" if advice.endswith("?") else "."
        return Refused(f"data.source {self.source}: {problem}. Received: {str(received).rstrip('.')}. {advice}{full_stop}")


class Part(NamedTuple):
    """One split of a set."""

    examples: Iterable[tuple[Any, Any]]
    """(image, label). An image is the bytes of a file, a Pillow image, or an array [H, W] or [H, W, C]. Labels count from 0."""
    class_names: Sequence[str] | None
    """Name of each class, by label. None: classes have numbers."""


def main() -> None:
    """Read a request from stdin, write the archive, and print its facts or the refusal to stdout."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # packages print
        request = SetRequest(**json.load(sys.stdin))
        try:
            answer_fields = run(request)
        except Refused as refused:
            answer_fields = {"refused": str(refused)}
        json.dump(answer_fields, answer)


def run(request: SetRequest) -> dict[str, Any]:
    """Write the archive of a set. Returns its facts.

    Raises:
        Refused: the package is missing or refuses, or the set has no class for each image.
    """
    top = request.module.partition(".")[0]
    try:
        package = importlib.import_module(request.module)
    except ImportError as error:
        advice = f"Install {top} there, or set {PYTHON} to an interpreter that has it"
        raise request.refusal(f"it needs the package {top}", f"{error} in {sys.executable}", advice) from None
    version = getattr(importlib.import_module(top), "__version__", "")
    try:
        with Path(request.out).open("wb") as file:
            sizes = write(request, READERS[request.package](package, request), file)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # somebody else's code may raise any
        hint = "" if request.download else ", or add download=yes to let the package download it"
        raise request.refusal(
            f"{top} {version} cannot read it",
            f"{type(error).__name__}: {str(error)[:_MAX_TEXT_LENGTH]}",
            f"Name the folder that has it with root=DIR{hint}",
        ) from error
    return {"sizes": sizes, "package": f"{top} {version}"}


def write(request: SetRequest, parts: Mapping[str, Part], file: Any) -> dict[str, int]:
    """Write the splits as `split/class/number.png` or `.jpg` to a tar. Returns the number of images of each.

    Raises:
        Refused: an example has no image or no class.
    """
    sizes: dict[str, int] = {}
    with tarfile.open(fileobj=file, mode="w") as archive:
        for split, part in parts.items():
            folders = _folders(part.class_names, is_divided=split != "all")
            count = 0
            for image, label in part.examples:
                number = _label(request, label)
                if number < 0 and count == 0:  # as public sets mark a split whose labels are secret
                    print(f"{split} of {request.source} has no labels, and is left out", file=sys.stderr)
                    break
                suffix, content = _encode(request, image)
                member = tarfile.TarInfo("/".join([split] * (split != "all") + [folders(number), f"{count:07}{suffix}"]))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                count += 1
            sizes |= {split: count} if count else {}
    if not sizes:
        raise request.refusal("it has no labelled images", "none", "Use another set")
    return sizes


def _label(request: SetRequest, label: Any) -> int:
    try:
        return operator.index(label)
    except TypeError:
        raise request.refusal(
            "it has no single class for each image",
            f"a label of type {type(label).__name__}",
            "Use a set for classification, no set for detection, segmentation or attributes",
        ) from None


def _encode(request: SetRequest, image: Any) -> tuple[str, bytes]:
    """Return (suffix, content) of an image as a file."""
    if isinstance(image, bytes):
        for start, suffix in _COPIED_FORMATS.items():
            if image.startswith(start):
                return suffix, image
        image = Image.open(io.BytesIO(image))
    elif not isinstance(image, Image.Image):
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,), (4,)):
            raise request.refusal(
                "it holds no images of 8 bits",
                f"{type(image).__name__} of {array.dtype} {list(array.shape)}",
                "Use a set of pictures, no set of videos, points or features",
            )
        image = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    if image.mode not in _PNG_MODES:
        image = image.convert("RGB")
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return ".png", content.getvalue()


def _folders(class_names: Sequence[str] | None, *, is_divided: bool) -> Callable[[int], str]:
    """Return a function from a label to its folder: the class's name without forbidden characters, or four digits."""
    folder_names: dict[int, str] = {}
    for label, name in enumerate(class_names or ()):
        folder = re.sub(r"[/\\\x00-\x1f]", "_", name).strip().encode()[:_MAX_TEXT_LENGTH].decode(errors="ignore")
        folder = f"_{folder}" if not folder or folder.startswith(".") else folder
        if not is_divided and any(folder.lower() in words for words in _SPLITS.values()):
            folder = f"class {folder}"  # else it would be a split
        folder_names[label] = f"{folder} ({label})" if folder in folder_names.values() else folder
    return lambda label: folder_names.get(label, f"{label:04}")


def _map_splits(request: SetRequest, available: Sequence[str]) -> dict[str, str]:
    """Map our names of the splits to the set's. A set with one split is not divided.

    Raises:
        Refused: it has several, and none to train on.
    """
    splits = {
        split_name: next(split for split in candidates if split in available)
        for split_name, candidates in _SPLITS.items()
        if {*candidates} & {*available}
    }
    if "train" in splits:
        return splits
    if len(available) == 1:
        return {"all": available[0]}
    raise request.refusal("it has no split to train on", join_names(list(available)) or "no split", "Use another set")


def _unknown_set_error(request: SetRequest, names: Sequence[str]) -> Refused:
    matches = difflib.get_close_matches(request.name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {matches[0]}?" if matches else f"Use one of {join_names(list(names))}"
    return request.refusal(f"{request.module} has no such set", repr(request.name), hint.rstrip("."))


def _check_settings(request: SetRequest, *settings: str) -> None:
    for name in request.settings:
        if name not in settings:
            raise request.refusal("there is no such setting", name, f"Use {', '.join(settings)} or download")


def read_torchvision(package: Any, request: SetRequest) -> dict[str, Part]:
    """Read a class of `torchvision.datasets`. Its splits are the values that it accepts as `train` or `split`."""
    set_class = getattr(package, request.name, None) if request.name in package.__all__ else None
    if not isinstance(set_class, type):
        raise _unknown_set_error(request, package.__all__)
    parameters, make = _parameters(set_class), cast(Callable[..., Any], set_class)
    arguments: dict[str, Any] = {name: int(value) if value.isdecimal() else value for name, value in request.settings.items()}
    if unknown := arguments.keys() - parameters - {"root"}:
        raise request.refusal("the set takes no such setting", min(unknown), f"Use {', '.join(sorted(parameters))}")
    arguments = {name: value for name, value in arguments.items() if name in parameters}
    arguments |= {"download": True} if request.download and "download" in parameters else {}
    make = cast(Callable[..., Any], set_class)
    datasets: dict[str, Any] = {}
    if "split" in parameters and "split" not in arguments:
        refusal: ValueError | None = None
        for ours, candidates in _SPLITS.items():
            for split_name in candidates:
                try:
                    datasets[ours] = make(**arguments, split=split_name)
                    break
                except ValueError as error:  # as torchvision refuses an unknown split
                    refusal = refusal or error
        if refusal is not None and "train" not in datasets:
            raise refusal
    elif "train" in parameters and "train" not in arguments:
        datasets = {"train": make(**arguments, train=True), "test": make(**arguments, train=False)}
    else:
        datasets = {"all": make(**arguments)}
    return {split: Part(_items(dataset), _names(dataset)) for split, dataset in datasets.items()}


def _parameters(kind: type) -> set[str]:
    """Return the names of a class's parameters. With `**kwargs`, those of its base count too."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base.__init__).parameters.values()
        names |= {parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names - {"self"}


def _items(dataset: Any) -> Iterator[tuple[Any, Any]]:
    for number in range(len(dataset)):
        image, label, *_ = dataset[number]
        yield image, label


def _names(dataset: Any) -> list[str] | None:
    names = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    return names and [", ".join(name) if isinstance(name, tuple) else str(name) for name in cast(list[Any], names)]


def read_tfds(package: Any, request: SetRequest) -> dict[str, Part]:
    """Read a set that TensorFlow Datasets has prepared, by name or by folder."""
    _check_settings(request, "root", "image", "label")
    if request.path is not None:
        builder = package.builder_from_directory(request.path)
    else:
        if re.split("[/:]", request.name)[0] not in (available := package.list_builders(with_community_datasets=False)):
            raise _unknown_set_error(request, available)
        builder = package.builder(request.name, data_dir=request.settings.get("root"))
    if request.download:
        builder.download_and_prepare()
    if not builder.is_prepared():
        raise FileNotFoundError(f"it is not prepared in {builder.data_path}")
    features = dict(getattr(builder.info.features, "items", dict)())
    image = _column(request, features, "image", package.features.Image)
    label = _column(request, features, "label", package.features.ClassLabel)

    def examples(split: str) -> Iterator[tuple[Any, Any]]:
        stored = builder.as_dataset(
            split=split,
            decoders={image: package.decode.SkipDecoding()},
            read_config=package.ReadConfig(interleave_cycle_length=1),  # the order in which they were written
        )
        for example in package.as_numpy(stored):
            yield bytes(example[image]), example[label]

    names = features[label].names
    return {ours: Part(examples(theirs), names) for ours, theirs in _map_splits(request, list(builder.info.splits)).items()}


def read_huggingface(package: Any, request: SetRequest) -> dict[str, Part]:
    """Read a set of Hugging Face by name, or a folder of `save_to_disk`. No code of the set is run."""
    _check_settings(request, "root", "image", "label", "config")
    if request.path is not None:
        loaded = package.load_from_disk(request.path)
    elif int(package.__version__.partition(".")[0]) < _MIN_DATASETS_MAJOR:
        advice = f"Install datasets {_MIN_DATASETS_MAJOR} or later there"
        raise request.refusal(
            "an older datasets may run code that comes with the set", f"datasets {package.__version__}", advice
        )
    else:
        loaded = package.load_dataset(request.name, request.settings.get("config"), cache_dir=request.settings.get("root"))
    splits: dict[str, Any] = dict(loaded) if isinstance(loaded, package.DatasetDict) else {"train": loaded}
    if not isinstance(loaded, package.DatasetDict):
        split_names = {"all": "train"}
    else:
        split_names = _map_splits(request, list(splits))
    features = dict(splits[next(iter(split_names.values()))].features)
    image = _column(request, features, "image", package.Image)
    label = _column(request, features, "label", package.ClassLabel)

    def examples(split: str) -> Iterator[tuple[Any, Any]]:
        for example in splits[split].cast_column(image, package.Image(decode=False)):
            stored = example[image]
            yield stored["bytes"] or Path(stored["path"]).read_bytes(), example[label]

    return {ours: Part(examples(theirs), features[label].names) for ours, theirs in split_names.items()}


def _column(request: SetRequest, features: Mapping[str, Any], role: str, feature_class: type) -> str:
    """Return the only column of a type, or the column in a setting.

    Raises:
        Refused: there is none, or several and none is named.
    """
    matching = [name for name, feature in features.items() if isinstance(feature, feature_class)]
    requested = request.settings.get(role)
    if requested is not None and requested in matching:
        return requested
    if requested is None and len(matching) == 1:
        return matching[0]
    if len(matching) > 1:
        advice = f"Name one with {role}=, of {', '.join(matching)}"
    else:
        advice = "Use a set for classification, no set for detection, segmentation or attributes"
    columns = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items()) or "no columns"
    raise request.refusal(f"it needs one column of type {feature_class.__name__} as {role}", requested or columns, advice)


READERS = {"torchvision": read_torchvision, "tfds": read_tfds, "huggingface": read_huggingface}

if __name__ == "__main__":
    main()
