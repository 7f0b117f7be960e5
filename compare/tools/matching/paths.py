"""Pairs layers of two models along the edges of their graphs: by a layer's inputs, and by the place that its branch goes to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from common.matching.records import IMAGE, Layer


class LayerInput(NamedTuple):
    """An input of a layer."""

    name: str
    """Name of the layer with parameters that the input comes from, or IMAGE."""
    pools: int
    """Number of poolings on the way."""


Slot = tuple[LayerInput, ...]
"""Inputs that are added up in one place of a concatenation."""


class LayerGraph:
    """The graph of one model. Its nodes are the layers with parameters. Layers without parameters belong to the edges."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        slots_by_call: dict[str, list[Slot] | None] = {IMAGE: [(LayerInput(IMAGE, 0),)]}
        """Sources of each call's output. None: not known."""
        self.slots: dict[str, list[Slot] | None] = {}
        """Inputs of each layer with parameters. A layer that is called again takes all in one place."""
        for call in layers:
            parts = [slots_by_call.get(name) for name in call.fed_by]
            known = [slots for slots in parts if slots is not None]
            inputs = [slot for slots in known for slot in slots] if parts and len(known) == len(parts) else None
            if not call.parameters:
                slots_by_call[call.name] = None if inputs is None else _pass_through(call.kind, inputs)
                continue
            layer_name = call.name.partition("#")[0]
            slots_by_call[call.name] = [(LayerInput(layer_name, 0),)]
            if layer_name in self.slots and (before := self.slots[layer_name]) is not None and inputs is not None:
                inputs = _merge_slots([*before, *inputs])
            self.slots[layer_name] = None if layer_name in self.slots and self.slots[layer_name] is None else inputs
        self.consumers: dict[str, list[LayerInput]] = {}
        """Layers that each layer feeds, with the number of poolings on the way."""
        for consumer in self.slots:
            for source in self.sources(consumer):
                self.consumers.setdefault(source.name, []).append(LayerInput(consumer, source.pools))
        self.complete = None not in self.slots.values()
        """Whether the inputs of every layer are known."""

    def sources(self, name: str) -> list[LayerInput]:
        """Return the known inputs of a layer."""
        return [source for slot in self.slots.get(name) or [] for source in slot]


def _pass_through(kind: str, slots: list[Slot]) -> list[Slot]:
    if kind == "add":
        return _merge_slots(slots)
    return [tuple(LayerInput(source.name, source.pools + kind.endswith("pool")) for source in slot) for slot in slots]


def _merge_slots(slots: Iterable[Slot]) -> list[Slot]:
    return [tuple(sorted({source for slot in slots for source in slot}))]


class Pairing:
    """Pairs of layers, and the pairs that follow from them.

    Args:
        left, right: layers as they ran.
        known: names of pairs.
        signature: function to the kind and shapes that two corresponding layers must share.
    """

    def __init__(
        self,
        left: Sequence[Layer],
        right: Sequence[Layer],
        known: Mapping[str, str],
        signature: Callable[[Layer], tuple[Any, ...]],
    ) -> None:
        self.names: dict[str, str] = {}
        self._left_names: dict[str, str] = {}
        """Left names of the paired layers, by right name."""
        self._input_keys: dict[tuple[int, str], Hashable] = {}
        """Cached results of `_input_key`, valid until a pair is added."""
        self._graphs = LayerGraph(left), LayerGraph(right)
        self._signatures = [
            {layer.name: signature(layer) for layer in side if layer.parameters and "#" not in layer.name}
            for side in (left, right)
        ]
        for one, other in known.items():
            self.pair(one, other)

    @property
    def complete(self) -> bool:
        """Whether both graphs are known as a whole."""
        return all(graph.complete for graph in self._graphs)

    def pair(self, one: str, other: str) -> None:
        """Add a pair."""
        self.names[one], self._left_names[other] = other, one
        self._input_keys.clear()

    def propagate(self) -> dict[str, str]:
        """Add the pairs that follow from the known ones, the most certain first. Returns all pairs."""
        tests: tuple[Callable[[], bool], ...] = (
            self._pair_unique,
            lambda: self._pair_feeding_paired(self._input_key),
            self._pair_equal_inputs,
            self._pair_equal_neighbours,
            lambda: self._pair_feeding_paired(self._paired_input_key),
            self._pair_same_slot,
            lambda: self._pair_feeding_paired(lambda place, name: ()),
        )
        while any(test() for test in tests):
            pass
        return self.names

    def has_equal_inputs(self, one: str, other: str) -> bool:
        """Return whether two layers have equal inputs. Two unknown ones count as equal."""
        return self._input_key(0, one) == self._input_key(1, other)

    def _unpaired(self, place: int) -> list[str]:
        paired = self._left_names if place else self.names
        return [name for name in self._signatures[place] if name not in paired]

    def _pair_unique(self) -> bool:
        """Pair layers that are the only unpaired ones of their kind and shapes."""
        return self._add(self._group_unpaired(self._signature))

    def _pair_equal_inputs(self) -> bool:
        """Pair layers with equal inputs."""
        return self._add(self._group_unpaired(self._input_key))

    def _pair_equal_neighbours(self) -> bool:
        """Pair layers with equal inputs that feed layers of the same kinds and shapes."""
        if not self.complete:
            return False
        return self._add(
            self._group_unpaired(lambda place, name: (self._input_key(place, name), self._output_key(place, name)))
        )

    def _pair_feeding_paired(self, key_of: Callable[[int, str], Hashable]) -> bool:
        """Pair layers that feed a known pair, if no other of their kind and shapes there has the same `key_of`."""
        before = len(self.names)
        for one, other in [*self.names.items()]:
            paired = self.names, self._left_names
            sources = [
                [
                    source
                    for source in self._graphs[place].sources(consumer)
                    if source.name not in paired[place] and source.name != IMAGE
                ]
                for place, consumer in enumerate((one, other))
            ]
            if all(sources):
                self._add(self._group(sources, key_of))
        return len(self.names) > before

    def _pair_same_slot(self) -> bool:
        """Pair layers that feed a known pair from the same place of a concatenation."""
        groups: list[dict[Hashable, list[str]]] = [{}, {}]
        unpaired = {*self._unpaired(0)}, {*self._unpaired(1)}
        for one, other in self.names.items():
            ours, theirs = self._graphs[0].slots.get(one) or [], self._graphs[1].slots.get(other) or []
            if len(ours) != len(theirs):
                continue
            for slot_index, pair in enumerate(zip(ours, theirs, strict=True)):
                for place, slot in enumerate(pair):
                    if len(slot) == 1 and slot[0].name in unpaired[place]:
                        kind = self._signature(place, slot[0].name), self._input_key(place, slot[0].name)
                        groups[place].setdefault((one, slot_index, slot[0].pools, kind), []).append(slot[0].name)
        return self._add(groups)

    def _signature(self, place: int, name: str) -> Hashable:
        return self._signatures[place].get(name)

    def _group_unpaired(self, key_of: Callable[[int, str], Hashable]) -> list[dict[Hashable, list[str]]]:
        """Return the unpaired layers of each side by kind, shapes and `key_of`."""
        return self._group([[LayerInput(name, 0) for name in self._unpaired(place)] for place in (0, 1)], key_of)

    def _group(
        self, sides: Sequence[Iterable[LayerInput]], key_of: Callable[[int, str], Hashable]
    ) -> list[dict[Hashable, list[str]]]:
        """Return layers by kind, shapes and `key_of`. If that is None for one, all of its kind are left out."""
        groups_by_side: list[dict[tuple[Hashable, Hashable], list[str]]] = [{}, {}]
        unknown: set[Hashable] = set()
        for place, side in enumerate(sides):
            for source in side:
                kind, input_key = (source.pools, self._signature(place, source.name)), key_of(place, source.name)
                if input_key is None:
                    unknown.add(kind)
                groups_by_side[place].setdefault((kind, input_key), []).append(source.name)
        return [{key: names for key, names in groups.items() if key[0] not in unknown} for groups in groups_by_side]

    def _input_key(self, place: int, name: str) -> Hashable:
        """Return a key of a layer's inputs that is equal on both sides. None: not known."""
        slots = self._graphs[place].slots.get(name)
        if slots is None:
            return None
        if (place, name) not in self._input_keys:
            keys = (tuple(sorted(self._source_key(place, source) for source in slot)) for slot in slots)
            self._input_keys[place, name] = tuple(sorted(keys))
        return self._input_keys[place, name]

    def _paired_input_key(self, place: int, name: str) -> Hashable:
        """Return a key of the inputs that are paired already. The others may differ."""
        if self._graphs[place].slots.get(name) is None:
            return None
        keys = (self._source_key(place, source) for source in self._graphs[place].sources(name))
        return tuple(sorted(key for key in keys if key[0].startswith("=")))

    def _output_key(self, place: int, name: str) -> Hashable:
        return tuple(sorted(self._source_key(place, source) for source in self._graphs[place].consumers.get(name, [])))

    def _source_key(self, place: int, source: LayerInput) -> tuple[str, int]:
        if source.name == IMAGE:
            return "=", source.pools
        left_name = self._left_names.get(source.name) if place else source.name
        if left_name in self.names:
            return f"={left_name}", source.pools
        return repr(self._signature(place, source.name)), source.pools

    def _add(self, groups: Sequence[Mapping[Hashable, Sequence[str]]]) -> bool:
        """Pair layers that are alone in their group on both sides."""
        pairs = {
            names[0]: groups[1][key][0]
            for key, names in groups[0].items()
            if len({*names}) == 1 and len({*groups[1].get(key, ())}) == 1
        }
        before = len(self.names)
        for one, other in pairs.items():
            if one not in self.names and other not in self._left_names:
                self.pair(one, other)
        return len(self.names) > before
