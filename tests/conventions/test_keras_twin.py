"""The Keras twin is one package for three backends, which mirror each other. These checks need no Keras."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PLUGIN = PROJECT / "plugins" / "keras_twin"
PACKAGE = PLUGIN / "keras_twin"
BACKENDS = {
    "on_torch": {"torch", "pytorch_impl"},
    "on_tensorflow": {"tensorflow", "tensorflow_impl"},
    "on_jax": {"jax", "jax_impl"},
}
"""What a backend's folder alone may import."""
MOST_LINES = 1500


def names(path: Path) -> list[str]:
    """Public functions and classes of a file, and the public methods of its classes, in order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    methods = [
        f"{node.name}.{part.name}"
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef)
    ]
    return [name for name in [*(node.name for node in nodes), *methods] if not name.rpartition(".")[2].startswith("_")]


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {module.partition(".")[0] for module in modules}


def test_the_whole_twin_has_fewer_than_1500_lines() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py"))
    assert lines < MOST_LINES


def test_backends_have_the_same_files_and_public_names_in_the_same_order() -> None:
    first, *others = ({path.name: names(path) for path in (PACKAGE / folder).glob("*.py")} for folder in BACKENDS)
    assert first["backend.py"] and all(other == first for other in others)


def test_only_a_backend_s_own_folder_imports_its_framework() -> None:
    frameworks = {"torchvision"}.union(*BACKENDS.values())
    for path in PACKAGE.rglob("*.py"):
        assert imported(path) & frameworks <= BACKENDS.get(path.parent.name, set()), path


def test_only_one_file_outside_asks_which_backend_it_is() -> None:
    asking = {path.name for path in PACKAGE.glob("*.py") if re.search(r'KERAS_BACKEND"\]:$', path.read_text(), re.MULTILINE)}
    assert asking == {"backends.py"}


def test_its_lock_has_the_versions_of_the_project_and_of_the_jax_twin() -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9_.-]+)==([^ ;\\\n]+)", path.read_text(encoding="utf-8").lower(), re.MULTILINE))

    locked, jax = pins(PLUGIN / "requirements.lock"), pins(PROJECT / "plugins" / "jax_twin" / "requirements.lock")
    assert jax.items() <= locked.items()
    assert pins(PLUGIN / "requirements.txt")["keras"] == locked["keras"] == pins(PROJECT / "requirements.txt")["keras"]
    assert "\n-r ../jax_twin/requirements.txt\n" in (PLUGIN / "requirements.txt").read_text(encoding="utf-8")
