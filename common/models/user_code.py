"""The user's own code: found by name, run with care, and its lines named."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from common.machine import machine
from common.models import name_clashes
from common.spec import MODELS, SpecError
from common.spec.errors import did_you_mean

_EXIT = os._exit
_TERMINATED = 128 + signal.SIGTERM
"""Exit code of a twin that ends by that signal."""
_MOST_LETTERS = 10_000
"""Of an error's text."""

_OTHERS = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
        *(machine.PROJECT_ROOT / package for package in name_clashes.SUITE),
    )
)

_IMPORTED: set[str] = set()
"""Modules of users that this process imported, or tried to."""
_MAKES_NAMES = ("*", "__getattr__", "sys.modules", "globals", "locals", "vars", "setattr", "exec", "eval")
"""A module with none of these words defines no names but those in its text."""


def module(model: str) -> ModuleType:
    """Import a user's model module by its dotted name."""
    _IMPORTED.add(model)
    with kept_running(model):
        try:
            found = importlib.import_module(model)
        except ImportError as error:
            raise SpecError(
                name_clashes.clash(model, error)
                or f"model {model} cannot be imported ({error}). Use {', '.join(MODELS)}, or a module on PYTHONPATH that "
                "defines architecture."
            ) from None
        except Exception as error:
            raise SpecError(f"model {model} cannot be imported: {described(error)}. Mend the module.") from error
    if (clash := name_clashes.clash(model, None)) is not None:
        raise SpecError(clash)
    return found


def is_imported() -> bool:
    """Whether a user's own code runs in this process."""
    return bool(_IMPORTED)


def builder(model: str, framework: str) -> Callable[..., Any] | None:
    """`build_<framework>(architecture, precision, group)` of a user's model module. None: the architecture is enough."""
    if model in MODELS or "." not in model:
        return None
    found = getattr(module(model), f"build_{framework}", None)
    return found and kept_running(model)(found)


def folders(model: str) -> list[Path]:
    """The packages of a user's own model, and packages or files of a matched pair's two; none for the suite's models."""
    if model in MODELS:
        return []
    found = module(model)
    places = [Path(str(found.__file__)).parent]
    for name in getattr(found, "IMPORTS", ()):
        # Not imported: only a twin may import a framework.
        top = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
        if top is not None:
            places += map(Path, top.submodule_search_locations or filter(None, [top.origin]))
    return list(dict.fromkeys(places))


def modules(model: str) -> dict[str, Path | None]:
    """A user's own model and those in its IMPORTS: of each module the file that importing it would run. None: not found."""
    names = [model, *(name.partition(":")[0] for name in getattr(module(model), "IMPORTS", ()))]
    return {name: file_of(name) for name in names}


def file_of(name: str, found: ModuleSpec | None = None) -> Path | None:
    """The file that importing a module would run. Nothing is imported: its packages may import a framework. None: not found.

    Args:
        found: of the module's top package, if it is looked for elsewhere than on this process's path.
    """
    top, *rest = name.split(".")
    if (found := found or importlib.util.find_spec(top)) is None:
        return None
    places = [Path(folder, *rest) for folder in found.submodule_search_locations or ()]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))] if rest else []
    if not rest and found.has_location and found.origin:
        files = [Path(found.origin)]
    return next((file.resolve() for file in files if file.is_file()), None)


@contextmanager
def kept_running(model: str) -> Generator[None]:
    """Run a user's own code. It may not end the process: exit code 0 would look like a success.

    Raises:
        SpecError: it called `sys.exit` or `os._exit`, or raised what is no `Exception`.
    """
    process = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked child may end
            _EXIT(status)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    except SystemExit as ending:
        if ending.code == _TERMINATED:
            raise
        raise SpecError(f"model {model} ends the process: {described(ending)}. Take that out of the module.") from ending
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        if _is_others(traceback.extract_tb(error.__traceback__)[-1].filename):  # the suite ends the command by such a one
            raise
        raise SpecError(f"model {model} failed: {described(error)}. Mend the module.") from error
    finally:
        os._exit = _EXIT


def described(error: BaseException) -> str:
    """What went wrong, and where in the user's own code: one line, which no terminal takes for a command."""
    frame = _own_frame(error)
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text cannot be made: {type(another).__name__})"
    text = "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_LETTERS])
    return f"{type(error).__name__}: {text}{f' ({frame.filename}, line {frame.lineno})' if frame else ''}"


def _own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Where in the user's own code an error arose."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_others(frame.filename)]
    return frames[-1] if frames else None


def find(name: str) -> Any:
    """The object `package.module:name`.

    Raises:
        SpecError: it cannot be found, or importing its module fails.
    """
    place, _, attribute = name.partition(":")
    with running(name):
        found = importlib.import_module(place)
    if not hasattr(found, attribute):
        own = [key for key, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
        raise _absent(name, found.__file__, own)
    return getattr(found, attribute)


def refuse_absent(name: str, file: Path) -> None:
    """Refuse `package.module:name` if the module's text shows that it defines no such name. Nothing is imported.

    Raises:
        SpecError: it does not. A module that may make names as it runs is left to `find`.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return  # importing it says what is wrong
    known: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) | ast.ClassDef(name=own) | ast.Name(id=own):
                known.add(own)
            case ast.alias():
                known.add(node.asname or node.name.partition(".")[0])
            case ast.MatchAs(name=str(own)):
                known.add(own)
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                known.add("sys.modules")
            case _:
                pass
    if known.isdisjoint({name.partition(":")[2], *_MAKES_NAMES}):
        raise _absent(name, file, [each.name for each in tree.body if isinstance(each, (ast.ClassDef, ast.FunctionDef))])


def _absent(name: str, file: object, near: Sequence[str]) -> SpecError:
    place, _, attribute = name.partition(":")
    hint = did_you_mean(attribute, tuple(near), sentence=True)
    return SpecError(f"{place} has no {attribute}. Received: {name}. Name a class or function of {file}.{hint}")


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
def running(name: str, hint: str = "") -> Generator[None]:
    """Run code of the user. `hint`: what else to look at if it fails.

    Raises:
        SpecError: it raised. The message names its file and line.
    """
    with kept_running(name):
        try:
            yield
        except SpecError:
            raise
        except Exception as error:
            said = name_clashes.clash(name.partition(":")[0], error) if isinstance(error, ImportError) else None
            frame = _own_frame(error)
            where = f" ({shown(frame.filename, frame.lineno or 0)})" if frame else ""
            words = " ".join(str(error).split())[:600].rstrip(".")
            raise SpecError(said or f"{name} failed: {type(error).__name__}: {words}{where}.{hint}") from error


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
