"""Pairs layers of two models along the edges of their graphs: what feeds a layer, and into which place its branch goes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from common.matching.records import IMAGE, Layer


class Source(NamedTuple):
    """What feeds a layer."""

    name: str
    """Of a layer with parameters, or IMAGE."""
    pools: int
    """Poolings on the way."""


Slot = tuple[Source, ...]
"""What is added up in one place of a concatenation."""


class Paths:
    """The graph of one model. Its nodes are the layers with parameters. Layers without parameters belong to the edges."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        found: dict[str, list[Slot] | None] = {IMAGE: [(Source(IMAGE, 0),)]}
        """By call: what its output is made of. None: not known."""
        self.slots: dict[str, list[Slot] | None] = {}
        """By layer with parameters: what feeds it. A layer that is called again takes all in one place."""
        for call in layers:
            parts = [found.get(name) for name in call.fed_by]
            known = [slots for slots in parts if slots is not None]
            taken = [slot for slots in known for slot in slots] if parts and len(known) == len(parts) else None
            if not call.parameters:
                found[call.name] = None if taken is None else _through(call.kind, taken)
                continue
            own = call.name.partition("#")[0]
            found[call.name] = [(Source(own, 0),)]
            if own in self.slots and (before := self.slots[own]) is not None and taken is not None:
                taken = _summed([*before, *taken])
            self.slots[own] = None if own in self.slots and self.slots[own] is None else taken
        self.takers: dict[str, list[Source]] = {}
        """By layer: those that it feeds, with the poolings on the way."""
        for taker in self.slots:
            for each in self.sources(taker):
                self.takers.setdefault(each.name, []).append(Source(taker, each.pools))
        self.complete = None not in self.slots.values()
        """Whether it is known of every layer what feeds it."""

    def sources(self, name: str) -> list[Source]:
        """What feeds a layer, as far as it is known."""
        return [each for slot in self.slots.get(name) or [] for each in slot]


def _through(kind: str, taken: list[Slot]) -> list[Slot]:
    if kind == "add":
        return _summed(taken)
    return [tuple(Source(each.name, each.pools + kind.endswith("pool")) for each in slot) for slot in taken]


def _summed(slots: Iterable[Slot]) -> list[Slot]:
    return [tuple(sorted({each for slot in slots for each in slot}))]


class Pairing:
    """Pairs of layers, and what follows from them.

    Args:
        left, right: layers as they ran.
        known: names of pairs.
        signature: what two layers must share to stand for each other.
    """

    def __init__(
        self,
        left: Sequence[Layer],
        right: Sequence[Layer],
        known: Mapping[str, str],
        signature: Callable[[Layer], tuple[Any, ...]],
    ) -> None:
        self.names: dict[str, str] = {}
        self._lefts: dict[str, str] = {}
        """The left name of each right one that is paired."""
        self._known_words: dict[tuple[int, str], Hashable] = {}
        """What `_fed` says, until a pair is added."""
        self._paths = Paths(left), Paths(right)
        self._signatures = [
            {each.name: signature(each) for each in side if each.parameters and "#" not in each.name} for side in (left, right)
        ]
        for one, other in known.items():
            self.pair(one, other)

    @property
    def complete(self) -> bool:
        """Whether both graphs are known as a whole."""
        return all(each.complete for each in self._paths)

    def pair(self, one: str, other: str) -> None:
        """Add a pair."""
        self.names[one], self._lefts[other] = other, one
        self._known_words.clear()

    def follow(self) -> dict[str, str]:
        """Add the pairs that follow from those that are known, the surest first. Returns all."""
        tests: tuple[Callable[[], bool], ...] = (
            self._alone,
            lambda: self._feeding_a_pair(self._fed),
            self._fed_alike,
            self._between_alike,
            lambda: self._feeding_a_pair(self._fed_by_pairs),
            self._in_the_same_place,
            lambda: self._feeding_a_pair(lambda place, name: ()),
        )
        while any(test() for test in tests):
            pass
        return self.names

    def may_be(self, one: str, other: str) -> bool:
        """Whether two layers are fed alike. Two of which nothing is known count as alike."""
        return self._fed(0, one) == self._fed(1, other)

    def _open(self, place: int) -> list[str]:
        done = self._lefts if place else self.names
        return [each for each in self._signatures[place] if each not in done]

    def _alone(self) -> bool:
        """The last of their kind and shapes."""
        return self._add(self._by(self._signature))

    def _fed_alike(self) -> bool:
        """The same feeds them."""
        return self._add(self._by(self._fed))

    def _between_alike(self) -> bool:
        """The same feeds them, and they feed layers of the same kinds and shapes."""
        if not self.complete:
            return False
        return self._add(self._by(lambda place, name: (self._fed(place, name), self._feeds(place, name))))

    def _feeding_a_pair(self, tell: Callable[[int, str], Hashable]) -> bool:
        """They feed two layers that are a pair, and are alone there in their kind, shapes and what `tell` says."""
        before = len(self.names)
        for one, other in [*self.names.items()]:
            done = self.names, self._lefts
            sources = [
                [each for each in self._paths[place].sources(taker) if each.name not in done[place] and each.name != IMAGE]
                for place, taker in enumerate((one, other))
            ]
            if all(sources):
                self._add(self._grouped(sources, tell))
        return len(self.names) > before

    def _in_the_same_place(self) -> bool:
        """They feed two layers that are a pair, from the same place of a concatenation."""
        found: list[dict[Hashable, list[str]]] = [{}, {}]
        still = {*self._open(0)}, {*self._open(1)}
        for one, other in self.names.items():
            ours, theirs = self._paths[0].slots.get(one) or [], self._paths[1].slots.get(other) or []
            if len(ours) != len(theirs):
                continue
            for at, pair in enumerate(zip(ours, theirs, strict=True)):
                for place, slot in enumerate(pair):
                    if len(slot) == 1 and slot[0].name in still[place]:
                        kind = self._signature(place, slot[0].name), self._fed(place, slot[0].name)
                        found[place].setdefault((one, at, slot[0].pools, kind), []).append(slot[0].name)
        return self._add(found)

    def _signature(self, place: int, name: str) -> Hashable:
        return self._signatures[place].get(name)

    def _by(self, tell: Callable[[int, str], Hashable]) -> list[dict[Hashable, list[str]]]:
        """For each side: the open layers by kind, shapes and what `tell` says."""
        return self._grouped([[Source(each, 0) for each in self._open(place)] for place in (0, 1)], tell)

    def _grouped(
        self, sides: Sequence[Iterable[Source]], tell: Callable[[int, str], Hashable]
    ) -> list[dict[Hashable, list[str]]]:
        """Layers by kind, shapes and what `tell` says. If it says None of one, all of its kind are left out."""
        found: list[dict[tuple[Hashable, Hashable], list[str]]] = [{}, {}]
        unknown: set[Hashable] = set()
        for place, side in enumerate(sides):
            for each in side:
                kind, told = (each.pools, self._signature(place, each.name)), tell(place, each.name)
                if told is None:
                    unknown.add(kind)
                found[place].setdefault((kind, told), []).append(each.name)
        return [{key: names for key, names in groups.items() if key[0] not in unknown} for groups in found]

    def _fed(self, place: int, name: str) -> Hashable:
        """What feeds a layer, in words that both sides share. None: not known."""
        slots = self._paths[place].slots.get(name)
        if slots is None:
            return None
        if (place, name) not in self._known_words:
            said = (tuple(sorted(self._told(place, each) for each in slot)) for slot in slots)
            self._known_words[place, name] = tuple(sorted(said))
        return self._known_words[place, name]

    def _fed_by_pairs(self, place: int, name: str) -> Hashable:
        """The part of it that is paired. The rest may differ."""
        if self._paths[place].slots.get(name) is None:
            return None
        told = (self._told(place, each) for each in self._paths[place].sources(name))
        return tuple(sorted(each for each in told if each[0].startswith("=")))

    def _feeds(self, place: int, name: str) -> Hashable:
        return tuple(sorted(self._told(place, each) for each in self._paths[place].takers.get(name, [])))

    def _told(self, place: int, source: Source) -> tuple[str, int]:
        if source.name == IMAGE:
            return "=", source.pools
        own = self._lefts.get(source.name) if place else source.name
        if own in self.names:
            return f"={own}", source.pools
        return repr(self._signature(place, source.name)), source.pools

    def _add(self, groups: Sequence[Mapping[Hashable, Sequence[str]]]) -> bool:
        """Pair what is alone in its group on both sides."""
        found = {
            names[0]: groups[1][key][0]
            for key, names in groups[0].items()
            if len({*names}) == 1 and len({*groups[1].get(key, ())}) == 1
        }
        before = len(self.names)
        for one, other in found.items():
            if one not in self.names and other not in self._lefts:
                self.pair(one, other)
        return len(self.names) > before
