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
"""Variable: the interpreter that reads the sets. Default: that of the suite."""

_KEPT = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png"}
"""Starts of image files that are copied."""
_MODES_OF_PNG = ("1", "L", "LA", "P", "RGB", "RGBA")
_SPLITS = {
    "train": ("train", "trainval", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
"""What the packages call the splits. The first that a set has counts."""
_LONGEST = 200
_MOST_NAMED = 20
_WITHOUT_SCRIPTS = 4
"""The first major version of `datasets` that runs no code of a set."""


class Refused(Exception):
    """The message names the source, what was received, and what to do."""


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


class Wanted(NamedTuple):
    """A set, as `public_sets` asks for it."""

    source: str
    package: str
    module: str
    name: str
    path: str | None
    download: bool
    settings: dict[str, str]
    out: str

    def refused(self, what: str, received: object, use: str) -> Refused:
        ending = "" if use.endswith("?") else "."
        return Refused(f"data.source {self.source}: {what}. Received: {str(received).rstrip('.')}. {use}{ending}")


class Part(NamedTuple):
    """One split of a set."""

    examples: Iterable[tuple[Any, Any]]
    """(image, label). An image is the bytes of a file, a Pillow image, or an array [H, W] or [H, W, C]. Labels count from 0."""
    class_names: Sequence[str] | None
    """By label. None: classes have numbers."""


def main() -> None:
    """Read from stdin what to read, write its archive, and say on stdout what is in it or why there is none."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # packages print
        wanted = Wanted(**json.load(sys.stdin))
        try:
            told = run(wanted)
        except Refused as refused:
            told = {"refused": str(refused)}
        json.dump(told, answer)


def run(wanted: Wanted) -> dict[str, Any]:
    """Write the archive of a set. Returns its facts.

    Raises:
        Refused: the package is missing or refuses, or the set has no class for each image.
    """
    top = wanted.module.partition(".")[0]
    try:
        package = importlib.import_module(wanted.module)
    except ImportError as error:
        use = f"Install {top} there, or set {PYTHON} to an interpreter that has it"
        raise wanted.refused(f"it needs the package {top}", f"{error} in {sys.executable}", use) from None
    version = getattr(importlib.import_module(top), "__version__", "")
    try:
        with Path(wanted.out).open("wb") as file:
            sizes = write(wanted, READERS[wanted.package](package, wanted), file)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # somebody else's code may raise any
        ask = "" if wanted.download else ", or add download=yes to let the package download it"
        raise wanted.refused(
            f"{top} {version} cannot read it",
            f"{type(error).__name__}: {str(error)[:_LONGEST]}",
            f"Name the folder that has it with root=DIR{ask}",
        ) from error
    return {"sizes": sizes, "package": f"{top} {version}"}


def write(wanted: Wanted, parts: Mapping[str, Part], file: Any) -> dict[str, int]:
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
                number = _label(wanted, label)
                if number < 0 and count == 0:  # as public sets mark a split whose labels are secret
                    print(f"{split} of {wanted.source} has no labels, and is left out", file=sys.stderr)
                    break
                suffix, content = _encoded(wanted, image)
                member = tarfile.TarInfo("/".join([split] * (split != "all") + [folders(number), f"{count:07}{suffix}"]))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                count += 1
            sizes |= {split: count} if count else {}
    if not sizes:
        raise wanted.refused("it has no labelled images", "none", "Use another set")
    return sizes


def _label(wanted: Wanted, label: Any) -> int:
    try:
        return operator.index(label)
    except TypeError:
        raise wanted.refused(
            "it has no single class for each image",
            f"a label of type {type(label).__name__}",
            "Use a set for classification, no set for detection, segmentation or attributes",
        ) from None


def _encoded(wanted: Wanted, image: Any) -> tuple[str, bytes]:
    """(suffix, content) of an image as a file."""
    if isinstance(image, bytes):
        for start, suffix in _KEPT.items():
            if image.startswith(start):
                return suffix, image
        image = Image.open(io.BytesIO(image))
    elif not isinstance(image, Image.Image):
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,), (4,)):
            raise wanted.refused(
                "it holds no images of 8 bits",
                f"{type(image).__name__} of {array.dtype} {list(array.shape)}",
                "Use a set of pictures, no set of videos, points or features",
            )
        image = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    if image.mode not in _MODES_OF_PNG:
        image = image.convert("RGB")
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return ".png", content.getvalue()


def _folders(class_names: Sequence[str] | None, *, is_divided: bool) -> Callable[[int], str]:
    """Folder of each class: its name without what no folder may have. Numbers have as many digits as the largest."""
    made: dict[int, str] = {}
    for label, name in enumerate(class_names or ()):
        plain = re.sub(r"[/\\\x00-\x1f]", "_", name).strip().encode()[:_LONGEST].decode(errors="ignore")
        plain = f"_{plain}" if not plain or plain.startswith(".") else plain
        if not is_divided and any(plain.lower() in words for words in _SPLITS.values()):
            plain = f"class {plain}"  # else it would be a split
        made[label] = f"{plain} ({label})" if plain in made.values() else plain
    return lambda label: made.get(label, f"{label:04}")


def _divided(wanted: Wanted, known: Sequence[str]) -> dict[str, str]:
    """By our name of a split: the set's own. A set with one split is not divided.

    Raises:
        Refused: it has several, and none to train on.
    """
    found = {ours: next(each for each in theirs if each in known) for ours, theirs in _SPLITS.items() if {*theirs} & {*known}}
    if "train" in found:
        return found
    if len(known) == 1:
        return {"all": known[0]}
    raise wanted.refused("it has no split to train on", listed(list(known)) or "no split", "Use another set")


def _unknown(wanted: Wanted, names: Sequence[str]) -> Refused:
    close = difflib.get_close_matches(wanted.name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}?" if close else f"Use one of {listed(list(names))}"
    return wanted.refused(f"{wanted.module} has no such set", repr(wanted.name), hint.rstrip("."))


def _only(wanted: Wanted, *settings: str) -> None:
    for name in wanted.settings:
        if name not in settings:
            raise wanted.refused("there is no such setting", name, f"Use {', '.join(settings)} or download")


def of_torchvision(package: Any, wanted: Wanted) -> dict[str, Part]:
    """A class of `torchvision.datasets`. Its splits are those that it takes as `train` or `split`."""
    kind = getattr(package, wanted.name, None) if wanted.name in package.__all__ else None
    if not isinstance(kind, type):
        raise _unknown(wanted, package.__all__)
    taken, make = _parameters(kind), cast(Callable[..., Any], kind)
    given: dict[str, Any] = {name: int(each) if each.isdecimal() else each for name, each in wanted.settings.items()}
    if others := given.keys() - taken - {"root"}:
        raise wanted.refused("the set takes no such setting", min(others), f"Use {', '.join(sorted(taken))}")
    given = {name: each for name, each in given.items() if name in taken}
    given |= {"download": True} if wanted.download and "download" in taken else {}
    make = cast(Callable[..., Any], kind)
    made: dict[str, Any] = {}
    if "split" in taken and "split" not in given:
        refusal: ValueError | None = None
        for ours, theirs in _SPLITS.items():
            for word in theirs:
                try:
                    made[ours] = make(**given, split=word)
                    break
                except ValueError as error:  # as torchvision refuses an unknown split
                    refusal = refusal or error
        if refusal is not None and "train" not in made:
            raise refusal
    elif "train" in taken and "train" not in given:
        made = {"train": make(**given, train=True), "test": make(**given, train=False)}
    else:
        made = {"all": make(**given)}
    return {split: Part(_items(found), _names(found)) for split, found in made.items()}


def _parameters(kind: type) -> set[str]:
    """Names of what a class takes. With `**kwargs`, what its base takes too."""
    taken: set[str] = set()
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        parameters = inspect.signature(each.__init__).parameters.values()
        taken |= {parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return taken - {"self"}


def _items(found: Any) -> Iterator[tuple[Any, Any]]:
    for number in range(len(found)):
        image, label, *_ = found[number]
        yield image, label


def _names(found: Any) -> list[str] | None:
    names = getattr(found, "classes", None) or getattr(found, "categories", None)
    return names and [", ".join(each) if isinstance(each, tuple) else str(each) for each in cast(list[Any], names)]


def of_tfds(package: Any, wanted: Wanted) -> dict[str, Part]:
    """A set that TensorFlow Datasets has prepared, by name or by folder."""
    _only(wanted, "root", "image", "label")
    if wanted.path is not None:
        builder = package.builder_from_directory(wanted.path)
    else:
        if re.split("[/:]", wanted.name)[0] not in (known := package.list_builders(with_community_datasets=False)):
            raise _unknown(wanted, known)
        builder = package.builder(wanted.name, data_dir=wanted.settings.get("root"))
    if wanted.download:
        builder.download_and_prepare()
    if not builder.is_prepared():
        raise FileNotFoundError(f"it is not prepared in {builder.data_path}")
    features = dict(getattr(builder.info.features, "items", dict)())
    image = _column(wanted, features, "image", package.features.Image)
    label = _column(wanted, features, "label", package.features.ClassLabel)

    def examples(split: str) -> Iterator[tuple[Any, Any]]:
        stored = builder.as_dataset(
            split=split,
            decoders={image: package.decode.SkipDecoding()},
            read_config=package.ReadConfig(interleave_cycle_length=1),  # the order in which they were written
        )
        for each in package.as_numpy(stored):
            yield bytes(each[image]), each[label]

    names = features[label].names
    return {ours: Part(examples(theirs), names) for ours, theirs in _divided(wanted, list(builder.info.splits)).items()}


def of_huggingface(package: Any, wanted: Wanted) -> dict[str, Part]:
    """A set of Hugging Face: from the hub or its cache by name, or a folder of `save_to_disk`. No code of the set is run."""
    _only(wanted, "root", "image", "label", "config")
    if wanted.path is not None:
        found = package.load_from_disk(wanted.path)
    elif int(package.__version__.partition(".")[0]) < _WITHOUT_SCRIPTS:
        use = f"Install datasets {_WITHOUT_SCRIPTS} or later there"
        raise wanted.refused("an older datasets may run code that comes with the set", f"datasets {package.__version__}", use)
    else:
        found = package.load_dataset(wanted.name, wanted.settings.get("config"), cache_dir=wanted.settings.get("root"))
    splits: dict[str, Any] = dict(found) if isinstance(found, package.DatasetDict) else {"train": found}
    if not isinstance(found, package.DatasetDict):
        divided = {"all": "train"}
    else:
        divided = _divided(wanted, list(splits))
    features = dict(splits[next(iter(divided.values()))].features)
    image = _column(wanted, features, "image", package.Image)
    label = _column(wanted, features, "label", package.ClassLabel)

    def examples(split: str) -> Iterator[tuple[Any, Any]]:
        for each in splits[split].cast_column(image, package.Image(decode=False)):
            stored = each[image]
            yield stored["bytes"] or Path(stored["path"]).read_bytes(), each[label]

    return {ours: Part(examples(theirs), features[label].names) for ours, theirs in divided.items()}


def _column(wanted: Wanted, features: Mapping[str, Any], role: str, kind: type) -> str:
    """The one column of a kind, or the one that a setting names.

    Raises:
        Refused: there is none, or several and none is named.
    """
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    named = wanted.settings.get(role)
    if named is not None and named in fitting:
        return named
    if named is None and len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        use = f"Name one with {role}=, of {', '.join(fitting)}"
    else:
        use = "Use a set for classification, no set for detection, segmentation or attributes"
    columns = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items()) or "no columns"
    raise wanted.refused(f"it needs one column of type {kind.__name__} as {role}", named or columns, use)


READERS = {"torchvision": of_torchvision, "tfds": of_tfds, "huggingface": of_huggingface}

if __name__ == "__main__":
    main()
