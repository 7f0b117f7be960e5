"""The user's own code: finds it by name, runs it safely, and names its lines in errors."""

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
"""Exit code of a twin that SIGTERM ends."""
_MAX_TEXT_LENGTH = 10_000
"""Largest number of characters of an error's text."""

_LIBRARY_FOLDERS = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
        *(machine.PROJECT_ROOT / package for package in (*name_clashes.SUITE_PACKAGES, "convtwins")),
    )
)

_IMPORTED: set[str] = set()
"""Users' modules that this process imported or tried to import."""
_FORMER_ADDRESSES = (
    "common.matching.pair",
    "common.models.architectures",
    *(f"{twin}_impl.{name}" for twin in ("pytorch", "tensorflow") for name in ("batch_norm", "native")),
)
"""Modules that models of users imported before `convtwins.models`."""
_DYNAMIC_NAMES = ("*", "__getattr__", "sys.modules", "globals", "locals", "vars", "setattr", "exec", "eval")
"""Names that let a module define other names at run time. A module without them defines only names in its text."""


def module(model: str) -> ModuleType:
    """Import a user's model module by its dotted name."""
    is_new = model not in sys.modules
    _IMPORTED.add(model)
    with forbid_exit(model):
        try:
            imported = importlib.import_module(model)
        except ImportError as error:
            raise SpecError(
                name_clashes.describe_clash(model, error)
                or f"model {model} cannot be imported ({error}). Use {', '.join(MODELS)}, or a module on PYTHONPATH that "
                "defines architecture."
            ) from None
        except Exception as error:
            raise SpecError(f"model {model} cannot be imported: {describe_error(error)}. Mend the module.") from error
    if (clash := name_clashes.describe_clash(model, None)) is not None:
        raise SpecError(clash)
    is_users = model.partition(".")[0] not in name_clashes.SUITE_PACKAGES
    if is_new and is_users and (file := Path(imported.__file__ or "")).is_file():
        _notify_of_former_addresses(file)
    return imported


def _notify_of_former_addresses(file: Path) -> None:
    """Warn at each line of a user's model that imports a former address."""
    for line, name in name_clashes.imports_of(file):
        if name in _FORMER_ADDRESSES:
            warnings.warn_explicit(
                f"{name} is a former address. Import from convtwins.models instead: the old address will go.",
                FutureWarning,  # a DeprecationWarning would be shown to nobody
                str(file),
                line,
            )


def is_imported() -> bool:
    """Return whether a user's own code runs in this process."""
    return bool(_IMPORTED)


def builder(model: str, framework: str) -> Callable[..., Any] | None:
    """Return `build_<framework>(architecture, precision, group)` of a user's model module. None: the architecture is enough."""
    if model in MODELS or "." not in model:
        return None
    build = getattr(module(model), f"build_{framework}", None)
    return build and forbid_exit(model)(build)


def folders(model: str) -> list[Path]:
    """Return the folders or files of a user's own model, or of both models of a matched pair. Empty for the suite's models."""
    if model in MODELS:
        return []
    imported = module(model)
    paths = [Path(str(imported.__file__)).parent]
    for name in getattr(imported, "IMPORTS", ()):
        # Not imported: only a twin may import a framework.
        top = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
        if top is not None:
            paths += map(Path, top.submodule_search_locations or filter(None, [top.origin]))
    return list(dict.fromkeys(paths))


def modules(model: str) -> dict[str, Path | None]:
    """Return the file of a user's own model module and of each module in its IMPORTS. None: not found."""
    names = [model, *(name.partition(":")[0] for name in getattr(module(model), "IMPORTS", ()))]
    return {name: file_of(name) for name in names}


def file_of(name: str, module_spec: ModuleSpec | None = None) -> Path | None:
    """Return the file that importing a module would run, without importing anything. None: not found.

    Args:
        module_spec: spec of the module's top package, if it is not on this process's path.
    """
    top, *rest = name.split(".")
    if (module_spec := module_spec or importlib.util.find_spec(top)) is None:
        return None
    paths = [Path(folder, *rest) for folder in module_spec.submodule_search_locations or ()]
    files = [file for place in paths for file in (place / "__init__.py", place.with_suffix(".py"))] if rest else []
    if not rest and module_spec.has_location and module_spec.origin:
        files = [Path(module_spec.origin)]
    return next((file.resolve() for file in files if file.is_file()), None)


@contextmanager
def forbid_exit(model: str) -> Generator[None]:
    """Run a user's own code. It may not end the process: exit code 0 would look like a success."""
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
        raise SpecError(f"model {model} ends the process: {describe_error(ending)}. Take that out of the module.") from ending
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        if _is_library(traceback.extract_tb(error.__traceback__)[-1].filename):  # the suite ends the command by such a one
            raise
        raise SpecError(f"model {model} failed: {describe_error(error)}. Mend the module.") from error
    finally:
        os._exit = _EXIT


def describe_error(error: BaseException) -> str:
    """Describe an error and its place in the user's own code, in one line of printable characters."""
    frame = _user_frame(error)
    try:
        text = str(error)
    except Exception as text_error:
        text = f"(its text cannot be made: {type(text_error).__name__})"
    text = "".join(character if character.isprintable() else " " for character in text[:_MAX_TEXT_LENGTH])
    return f"{type(error).__name__}: {text}{f' ({frame.filename}, line {frame.lineno})' if frame else ''}"


def _user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of an error in the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return frames[-1] if frames else None


def find(name: str) -> Any:
    """Return the object `package.module:name`."""
    module_name, _, attribute = name.partition(":")
    with report_errors(name):
        imported = importlib.import_module(module_name)
    if not hasattr(imported, attribute):
        defined = [key for key, value in vars(imported).items() if getattr(value, "__module__", None) == imported.__name__]
        raise _absent_error(name, imported.__file__, defined)
    return getattr(imported, attribute)


def refuse_absent(name: str, file: Path) -> None:
    """Refuse `package.module:name` if the module's text shows that it defines no such name. Nothing is imported."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return  # importing it says what is wrong
    known: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=defined)
                | ast.AsyncFunctionDef(name=defined)
                | ast.ClassDef(name=defined)
                | ast.Name(id=defined)
            ):
                known.add(defined)
            case ast.alias():
                known.add(node.asname or node.name.partition(".")[0])
            case ast.MatchAs(name=str(defined)):
                known.add(defined)
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                known.add("sys.modules")
            case _:
                pass
    if known.isdisjoint({name.partition(":")[2], *_DYNAMIC_NAMES}):
        raise _absent_error(name, file, _defined(tree))


def _defined(tree: ast.Module) -> list[str]:
    return [statement.name for statement in tree.body if isinstance(statement, (ast.ClassDef, ast.FunctionDef))]


def describe_text(file: Path) -> tuple[list[str], set[str]]:
    """Return (classes and functions that a module defines, top packages that it imports) by its text. Nothing is imported.

    A file that is no text of Python gives none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return [], set()
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return _defined(tree), packages


def _absent_error(name: str, file: object, candidates: Sequence[str]) -> SpecError:
    module_name, _, attribute = name.partition(":")
    hint = did_you_mean(attribute, tuple(candidates), sentence=True)
    return SpecError(f"{module_name} has no {attribute}. Received: {name}. Name a class or function of {file}.{hint}")


def build(name: str, kind: type, *, classes: int, image_shape: tuple[int, int, int]) -> Any:
    """Build a model: an instance as it is, or the result of a class or function.

    The class or function gets arguments for its parameters with usual names, such as num_classes, input_shape or channels.
    """
    model = find(name)
    if not isinstance(model, kind):
        if not callable(model):
            raise SpecError(f"{name} must be a {kind.__name__}, its class, or a function. Received: {type(model).__name__}.")
        arguments: dict[str, Any] = {
            **dict.fromkeys(("classes", "num_classes", "n_classes"), classes),
            "input_shape": image_shape,
            "image_size": image_shape[0],
            **dict.fromkeys(("channels", "in_channels"), image_shape[2]),
        }
        with report_errors(name):
            parameters = inspect.signature(model).parameters
            model = model(**{key: value for key, value in arguments.items() if key in parameters})
    if not isinstance(model, kind):
        raise SpecError(
            f"{name} must give a {kind.__module__.partition('.')[0]} {kind.__name__}. Received: {type(model).__name__} of "
            f"{type(model).__module__.partition('.')[0]}. PyTorch's model comes first, then Keras's."
        )
    return model


@contextmanager
def report_errors(name: str, hint: str = "") -> Generator[None]:
    """Run the user's code, and turn its errors into SpecError. `hint` ends the message with more advice."""
    with forbid_exit(name):
        try:
            yield
        except SpecError:
            raise
        except Exception as error:
            reason = name_clashes.describe_clash(name.partition(":")[0], error) if isinstance(error, ImportError) else None
            frame = _user_frame(error)
            location = f" ({format_location(frame.filename, frame.lineno or 0)})" if frame else ""
            text = " ".join(str(error).split())[:600].rstrip(".")
            raise SpecError(reason or f"{name} failed: {type(error).__name__}: {text}{location}.{hint}") from error


@contextmanager
def record_lines(kind: type) -> Generator[dict[int, str | None]]:
    """Record the user's file and line that creates each instance of a class, by `id`."""
    lines: dict[int, str | None] = {}
    original: Callable[..., None] = kind.__init__

    @functools.wraps(original)
    def recording_init(self: Any, *arguments: Any, **keywords: Any) -> None:
        lines[id(self)] = line(self)
        original(self, *arguments, **keywords)

    recording_init.__signature__ = inspect.signature(original)  # pyright: ignore[reportAttributeAccessIssue]  # Keras compares two ways to ask
    kind.__init__ = recording_init
    try:
        yield lines
    finally:
        kind.__init__ = original


def line(instance: object = None) -> str | None:
    """Return file and line of the user's code that is running. The constructor of `instance` itself does not count."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # a stack of FrameInfo would read every source file
    while frame is not None:
        is_constructor = instance is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is instance
        if not is_constructor and not _is_library(frame.f_code.co_filename):
            return format_location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def format_location(file: str, number: int) -> str:
    """Return `file:line`, with a relative path if the file is in the current folder."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number}"


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith("<") or str(Path(file).resolve()).startswith(_LIBRARY_FOLDERS)
