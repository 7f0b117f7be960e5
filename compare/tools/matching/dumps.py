"""Halves of a match in files: what one model answers, so that each model can run on a machine of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from common.artifacts import checked_arrays
from common.errors import UserError
from common.frozen import Frozen
from common.matching.records import Array, OpenRequest, read_images, stress_inputs, write_images
from common.models import weights
from common.spec import SpecError
from compare.results.workspace import refuse_unwritable
from compare.tools.matching.model_comparison import ModelServer

SUFFIX = ".dump"
_FORMAT = "1"
_RECORD = "convtwins"
"""Key of the record in the metadata of the safetensors file."""
_IMAGES, _LABELS = "data/images", "data/labels"
_AGAIN = "Make it again with --dump."


class DumpedAnswer(Frozen):
    """An answer of a model. Equal arrays are stored once: a layer takes what the one before it gives."""

    answer: dict[str, Any]
    arrays: dict[str, str]
    """Name in the file by name in the answer."""


class DumpRecord(Frozen):
    """Content of a dump besides arrays."""

    framework: str
    versions: dict[str, str | None]
    """Versions of the framework's distributions. None: not installed."""
    request: OpenRequest
    given: str | None
    """Digest of the weights that were given to the model. None: it kept its own."""
    answers: dict[str, DumpedAnswer]


def is_dump(name: str) -> bool:
    """Return whether an argument names a dump, and no model."""
    return name.endswith(SUFFIX) and ":" not in name


def check(path: Path | None) -> None:
    """Refuse a file that no dump can be written to, before anything starts. None: there is none."""
    if path is None:
        return
    if path.suffix != SUFFIX:
        raise SpecError(f"--dump names a file that ends in {SUFFIX}. Received: {path}. Use e.g. {path.stem}{SUFFIX}.")
    refuse_unwritable(path.absolute().parent, "--dump")
    if path.exists():
        try:
            DumpedModel(path)
        except UserError:
            raise SpecError(
                f"--dump would overwrite a file that is no whole dump. Received: {path}. Name a new file."
            ) from None


def _key(request: Mapping[str, Any]) -> str:
    """Return the name of a request in a dump."""
    if "far" in request:
        return f"far/{request['far']}/{'layers' if request['record'] else 'rounding'}"
    return "open" if "open" in request else "measure"


class AnswerRecorder:
    """A model whose answers are kept, to be written as a dump. It is used as the model's process.

    Args:
        process: the model's process.
        versions: versions of the framework's distributions.
    """

    def __init__(self, process: ModelServer, versions: Mapping[str, str | None]) -> None:
        self.framework, self._process, self._versions = process.framework, process, dict(versions)
        self._key = ""
        self._given: str | None = None
        self._answers: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {}

    def send(self, request: Mapping[str, Any]) -> None:
        self._key = _key(request)
        self._process.send(request)

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        self._answers[self._key] = self._process.answer()
        return self._answers[self._key]

    def give(self, arrays: Mapping[str, Array]) -> str:
        self._given = weights.digest(arrays)
        return self._process.give(arrays)

    def save(self, path: Path, request: OpenRequest) -> None:
        """Ask the model for all that a comparison may need, and write the dump. Before that the model was opened.

        Args:
            path: the file.
            request: the request that opened the model.
        """
        if "measure" in self._answers:
            refused = self._answers["measure"][0]["far"]
            for words in stress_inputs(request):
                for record in [] if words in refused else [False, True]:
                    if _key(far := {"far": words, "record": record}) not in self._answers:
                        self.send(far)
                        self.answer()
        stored: dict[str, Array] = {}
        names: dict[bytes, str] = {}

        def name_of(array: Array) -> str:
            digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()).digest()
            name = names.setdefault(digest, str(len(names)))
            stored[name] = array
            return name

        answers = {
            key: DumpedAnswer(answer=answer, arrays={name: name_of(array) for name, array in arrays.items()})
            for key, (answer, arrays) in self._answers.items()
        }
        if request.data is not None:
            stored |= dict(zip((_IMAGES, _LABELS), read_images(request.data), strict=True))
        # Paths of this machine say nothing on another one.
        portable_request = request.model_copy(update={"data": None, "weights": request.weights and Path(request.weights).name})
        record = DumpRecord(
            framework=self.framework,
            versions=self._versions,
            request=portable_request,
            given=self._given,
            answers=answers,
        )
        checked_arrays.write(path, {"version": _FORMAT, _RECORD: record.model_dump_json()}, stored)


class DumpedModel:
    """A model's answers from a dump. It is used as the model's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        metadata, self._arrays = checked_arrays.read(path, kind="dump of a model", remedy=_AGAIN, version=_FORMAT)
        try:
            self._record = DumpRecord.model_validate_json(metadata[_RECORD])
        except (KeyError, ValidationError):
            raise SpecError(f"{path} is no dump of a model for `match`. {_AGAIN}") from None
        self._key = ""
        self._given: str | None = None

    @property
    def framework(self) -> str:
        return self._record.framework

    @property
    def versions(self) -> dict[str, str | None]:
        return self._record.versions

    def request(self, folder: Path) -> OpenRequest:
        """Return the request that opened the model. Images of a user's data are written to a folder first."""
        if _IMAGES not in self._arrays:
            return self._record.request
        data = folder / f"{self.framework}-data.safetensors"
        write_images(self._arrays[_IMAGES], self._arrays[_LABELS], data)
        return self._record.request.model_copy(update={"data": str(data)})

    def send(self, request: Mapping[str, Any]) -> None:
        self._key = _key(request)

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        if self._key == "measure" and self._given != self._record.given:
            raise SpecError(
                f"{self.path} holds a model with other weights than the first model's. The weights are copied when the dump is "
                "made. Make it again from the first dump, with the same --map and --as-built."
            )
        if (dumped := self._record.answers.get(self._key)) is None:
            raise SpecError(f"{self.path} has no answer for {self._key}: its layers did not fit then. {_AGAIN}")
        return dumped.answer, {name: self._arrays[stored] for name, stored in dumped.arrays.items()}

    def give(self, arrays: Mapping[str, Array]) -> str:
        self._given = weights.digest(arrays)
        return ""


def check_same_request(requests: tuple[OpenRequest, OpenRequest], names: tuple[str, str]) -> None:
    """Refuse two halves that were given other images, classes or steps."""
    first, second = (
        {
            "--input": "x".join(map(str, request.image)),
            "--classes": request.classes,
            "--steps": request.steps,
            "--data": _digest(request),
            "--prepare": bool(request.prepare),
            "--loss": bool(request.loss),
            "--optimizer": bool(request.optimizer),
        }
        for request in requests
    )
    for option, value in first.items():
        if value != second[option]:
            raise SpecError(
                f"Both halves must have the same {option}. Received: {value} for {names[0]}, {second[option]} for {names[1]}. "
                "Make one of them again."
            )


def _digest(request: OpenRequest) -> str:
    if request.data is None:
        return "none"
    images, labels = read_images(request.data)
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:12]


def size_words(path: Path, request: OpenRequest) -> list[str]:
    """Return a sentence on a dump that was written."""
    return [f"{path} holds {request.model}: {path.stat().st_size / 2**20:,.1f} MiB."]
