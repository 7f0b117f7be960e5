"""Twins of one command: its contestants, and what they say of themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, Self

from common.processes import signals
from common.spec import SpecError
from compare.cli.errors import LaunchError
from compare.cli.option_parsing import parse_choices
from compare.running import contestants, launch
from compare.running.contestants import Contestant


class Twins:
    """The contestants of a command, by name. Each twin is asked once to describe itself: importing a framework takes seconds.

    Args:
        names: names of the contestants. One without a definition stands for the twin of that name.
        definitions: contestants that are more than a twin's name. Others than `names` are left out.
        descriptions: known descriptions, by twin and interpreter. New ones are added to them.
    """

    def __init__(
        self,
        names: Iterable[str],
        definitions: Iterable[Contestant] = (),
        descriptions: dict[tuple[str, str | None], dict[str, Any]] | None = None,
    ) -> None:
        definitions = list(definitions)
        self.contestants = contestants.resolve(names, definitions)
        self.definitions = [contestant for contestant in self.contestants if contestant in definitions]
        self._by_name = {contestant.name: contestant for contestant in self.contestants}
        self._descriptions = {} if descriptions is None else descriptions

    @classmethod
    def choose(
        cls,
        frameworks: Sequence[str] | None,
        words: Sequence[str],
        in_file: Sequence[Contestant],
        twins: Collection[str],
        *,
        has_other_interpreters: bool = False,
    ) -> Self:
        """Return the contestants that a command compares.

        Args:
            frameworks: values of `--frameworks`: twins, or contestants of the spec file. None: not given.
            words: values of `--contestant`.
            in_file: contestants of the spec file. They are compared if the command line names none.
            twins: names of the twins of this interpreter.
            has_other_interpreters: whether other interpreters run them all. Each says for itself which twins it has.
        """
        option_contestants = [Contestant.from_option(word) for word in words]
        names = [contestant.name for contestant in option_contestants]
        for duplicate in (name for name in names if names.count(name) > 1 or name in (frameworks or ())):
            raise SpecError(
                f"Two contestants are named {duplicate}. Received: {' and '.join(words)}. Give each a name of its own."
            )
        definitions = {contestant.name: contestant for contestant in (*in_file, *option_contestants)}
        for contestant in (*in_file, *option_contestants):
            if contestant.name != contestant.twin and (
                contestant.name in twins or contestant.name in contestants.installed_twins()
            ):
                received = f"{contestant.name}={contestant.twin}"
                raise SpecError(f"{contestant.name} is the name of another twin. Received: {received}. Choose another name.")
            if contestant.python is None and contestant.twin not in twins and not has_other_interpreters:
                known = (*twins, *contestants.installed_twins())
                parse_choices(f"The twin of {contestant.name}", [contestant.twin], known)
        if frameworks is None and not option_contestants:
            return cls([contestant.name for contestant in in_file] or twins, definitions.values())
        selection = [*(frameworks or ()), *names]
        if has_other_interpreters:
            others = {name: Contestant.from_fields(name, {"twin": name}) for name in selection if name not in definitions}
            definitions |= others
        return cls(contestants.check(selection, [*dict.fromkeys([*twins, *definitions])]), definitions.values())

    @property
    def names(self) -> list[str]:
        """Names of the contestants, in the order of their comparison."""
        return [*self._by_name]

    def __getitem__(self, name: str) -> Contestant:
        return self._by_name[name]

    def only(self, names: Iterable[str]) -> Twins:
        """Return some of the contestants, which share the known descriptions."""
        return Twins(names, self.definitions, self._descriptions)

    def with_contestants(self, definitions: Sequence[Contestant]) -> Twins:
        """Return other contestants, which share the known descriptions."""
        return Twins([definition.name for definition in definitions], definitions, self._descriptions)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a contestant's description on this machine: versions, devices, modes, options."""
        with self.describe_all([name]) as answer:
            return answer(name)

    @contextlib.contextmanager
    def describe_all(
        self, names: Sequence[str] | None = None, *, defer_errors: bool = False
    ) -> Generator[Callable[[str], dict[str, Any]]]:
        """Ask contestants to describe themselves, at the same time. If the block raises, none is waited for.

        Args:
            names: names of the contestants. None: all.
            defer_errors: whether a contestant that cannot run raises only when its description is requested.

        Yields:
            A function that returns the description of one of them, as `describe` does.
        """
        requested = [self[name] for name in (self.names if names is None else names)]
        errors: dict[tuple[str, str | None], LaunchError] = {}
        missing = {_key(twin): twin for twin in reversed(requested) if _key(twin) not in self._descriptions}
        for key, contestant in list(missing.items()):
            try:
                launch.check_usable(contestant)
            except LaunchError as error:
                if not defer_errors:
                    raise
                errors[key] = error
                del missing[key]
        with contextlib.ExitStack() as process_stack:
            processes: dict[tuple[str, str | None], launch.DescribingProcess] = {}
            for key, contestant in missing.items():
                with signals.defer_signals():
                    processes[key] = process_stack.enter_context(launch.DescribingProcess(contestant))

            def answer(name: str) -> dict[str, Any]:
                if (key := _key(self[name])) in errors:
                    raise errors[key]
                if key not in self._descriptions:
                    self._descriptions[key] = processes[key].description()
                return self._descriptions[key]

            yield answer


def _key(contestant: Contestant) -> tuple[str, str | None]:
    """Key of a contestant's description. Switches do not change it."""
    return contestant.twin, contestant.python
