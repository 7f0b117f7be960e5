"""The user's own code: found by name, run with care, and its lines named."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.machine import machine
from common.models import architectures, name_clashes
from common.spec import SpecError

_OTHERS = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
        *(machine.PROJECT_ROOT / package for package in name_clashes.SUITE),
    )
)


def find(name: str) -> Any:
    """The object `package.module:name`.

    Raises:
        SpecError: it cannot be found, or importing its module fails.
    """
    module, _, attribute = name.partition(":")
    with running(name):
        found = importlib.import_module(module)
    if not hasattr(found, attribute):
        raise SpecError(f"{module} has no {attribute}. Received: {name}. Name a class or function of {found.__file__}.")
    return getattr(found, attribute)


def build(name: str, kind: type, *, classes: int, image: tuple[int, int, int]) -> Any:
    """Make a model: an instance as it is, or what a class or function returns.

    It is called with those of its parameters that have a usual name: classes, num_classes, input_shape, image_size, channels.

    Raises:
        SpecError: it cannot be made, or is no model of this framework.
    """
    made = find(name)
    if not isinstance(made, kind):
        if not callable(made):
            raise SpecError(f"{name} must be a {kind.__name__}, its class, or a function. Received: {type(made).__name__}.")
        known: dict[str, Any] = {
            **dict.fromkeys(("classes", "num_classes", "n_classes"), classes),
            "input_shape": image,
            "image_size": image[0],
            **dict.fromkeys(("channels", "in_channels"), image[2]),
        }
        with running(name):
            parameters = inspect.signature(made).parameters
            made = made(**{key: value for key, value in known.items() if key in parameters})
    if not isinstance(made, kind):
        raise SpecError(
            f"{name} must give a {kind.__module__.partition('.')[0]} {kind.__name__}. Received: {type(made).__name__}."
        )
    return made


@contextmanager
def running(name: str) -> Generator[None]:
    """Run code of the user.

    Raises:
        SpecError: it raised. The message names its file and line.
    """
    with architectures.kept_running(name):
        try:
            yield
        except SpecError:
            raise
        except Exception as error:
            said = name_clashes.clash(name.partition(":")[0], error) if isinstance(error, ImportError) else None
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_others(frame.filename)]
            where = f" ({shown(frames[-1].filename, frames[-1].lineno or 0)})" if frames else ""
            words = " ".join(str(error).split())[:600]
            raise SpecError(said or f"{name} failed: {type(error).__name__}: {words}{where}.") from error


@contextmanager
def noting_lines(kind: type) -> Generator[dict[int, str | None]]:
    """Note the user's file and line that makes each instance of a class, by `id`."""
    lines: dict[int, str | None] = {}
    original: Callable[..., None] = kind.__init__

    @functools.wraps(original)
    def noted(self: Any, *words: Any, **named: Any) -> None:
        lines[id(self)] = line(self)
        original(self, *words, **named)

    noted.__signature__ = inspect.signature(original)  # pyright: ignore[reportAttributeAccessIssue]  # Keras compares two ways to ask
    kind.__init__ = noted
    try:
        yield lines
    finally:
        kind.__init__ = original


def line(made: object = None) -> str | None:
    """File and line of the user's code that is running. The constructor of `made` itself does not count."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # a stack of FrameInfo would read every source file
    while frame is not None:
        own = made is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made
        if not own and not _is_others(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def shown(file: str, number: int) -> str:
    """`file:line`, short if it lies in the current folder."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number}"


@functools.cache
def _is_others(file: str) -> bool:
    return file.startswith("<") or str(Path(file).resolve()).startswith(_OTHERS)
