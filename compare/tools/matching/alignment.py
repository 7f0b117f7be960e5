"""Pairs the layers of two models."""

from __future__ import annotations

import operator
import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from common.matching.records import Layer
from common.spec import SpecError
from compare.tools.matching.paths import Pairing

_FAMILIES = {"average_pool": "max_pool", "global_max_pool": "global_average_pool"}
"""Kinds that may correspond: a port may have taken the wrong one."""

_MIN_NAME_SIMILARITY = 0.7
"""Smallest similarity (0 to 1) of two names that may correspond."""

LayersAgree = Callable[[str, str], tuple[bool, bool]]
"""Function from two layers' names to (whether their inputs agree, whether their outputs agree)."""


@dataclass(frozen=True)
class Alignment:
    """Two models, layer by layer."""

    pairs: list[tuple[str, str]]
    """Names of corresponding layers, in the left model's order of execution."""
    names: dict[str, str]
    """Names of corresponding layers with parameters: right name by left name."""
    incompatible: list[tuple[Layer | None, Layer | None]]
    """Layers with parameters that have no counterpart, paired in order."""
    confirmed: frozenset[str] = frozenset()
    """Left names of the pairs that the user, names or paths confirm, and not their order alone."""


def align(left: Sequence[Layer], right: Sequence[Layer], user_pairs: Mapping[str, str]) -> Alignment:
    """Pair layers by kind and shapes. If several share both, names decide, then paths through the models, then order.

    Args:
        left: one model's layers as they ran.
        right: the other's.
        user_pairs: pairs that the user names.
    """
    ours, theirs = with_parameters(left), with_parameters(right)
    names = _check_user_pairs(ours, theirs, user_pairs)
    confirmed = frozenset(user_pairs)
    ours = [layer for layer in ours if layer.name not in names]
    theirs = [layer for layer in theirs if layer.name not in names.values()]
    incompatible: list[tuple[Layer | None, Layer | None]] = []
    if Counter(map(signature, ours)) == Counter(map(signature, theirs)):
        same_order = [*map(signature, ours)] == [*map(signature, theirs)]
        names |= _by_name(ours, theirs)
        pairing = Pairing(left, right, names, signature)
        confirmed = frozenset(pairing.propagate())
        names = pairing.names
        if same_order:
            names = _by_order(ours, theirs, pairing)
        elif len(names) < len(with_parameters(left)):
            raise SpecError(_describe_ambiguous(left, right, pairing, user_pairs))
    else:
        pairing = Pairing(left, right, names, signature)
        if pairing.complete:
            names = pairing.propagate()
            confirmed = frozenset(names)
            ours = [layer for layer in ours if layer.name not in names]
            theirs = [layer for layer in theirs if layer.name not in names.values()]
        matcher = SequenceMatcher(None, [*map(signature, ours)], [*map(signature, theirs)], autojunk=False)
        for operation, start, end, other_start, other_end in matcher.get_opcodes():
            mine, others = ours[start:end], theirs[other_start:other_end]
            if operation == "equal":
                names |= {one.name: other.name for one, other in zip(mine, others, strict=True)}
            else:
                for place in range(max(len(mine), len(others))):
                    incompatible.append((_layer_at(mine, place), _layer_at(others, place)))
    order = [layer.name for layer in left]
    names = dict(sorted(names.items(), key=lambda pair: order.index(pair[0])))
    return Alignment(pair_layers(left, right, names), names, incompatible, confirmed)


def with_parameters(layers: Sequence[Layer]) -> list[Layer]:
    """Layers with parameters, each once."""
    return [layer for layer in layers if layer.parameters and "#" not in layer.name]


def signature(layer: Layer) -> tuple[Any, ...]:
    """Return the kind and shapes that two corresponding layers must share. A missing bias makes no difference."""
    shape = layer.parameters.get("kernel") or next(iter(layer.parameters.values()))
    return layer.kind, *shape


def _check_user_pairs(left: Sequence[Layer], right: Sequence[Layer], user_pairs: Mapping[str, str]) -> dict[str, str]:
    for names, layers in ((user_pairs, left), (user_pairs.values(), right)):
        known = [layer.name for layer in layers]
        for name in names:
            if name not in known:
                raise SpecError(
                    f"--map names no layer with parameters. Received: {name}. Use {', '.join(known) or 'none: there is none'}."
                )
    by_name = {layer.name: layer for layer in (*left, *right)}
    for one, other in user_pairs.items():
        if signature(by_name[one]) != signature(by_name[other]):
            described = f"{describe_layer(by_name[one])}, {describe_layer(by_name[other])}"
            raise SpecError(f"--map pairs layers of other shapes. Received: {described}.")
    return dict(user_pairs)


def _group_layers(*sides: Sequence[Layer]) -> Generator[list[list[Layer]]]:
    """Yield layers of both sides, grouped by kind and shapes."""
    for key in dict.fromkeys(map(signature, sides[0])):
        yield [[layer for layer in side if signature(layer) == key] for side in sides]


def _by_name(left: Sequence[Layer], right: Sequence[Layer]) -> dict[str, str]:
    """Return pairs of layers of the same kinds and shapes whose names agree, all of a kind or none."""
    names: dict[str, str] = {}
    for ours, theirs in _group_layers(left, right):
        by_name = {normalised_name(layer.name): layer.name for layer in theirs}
        if {normalised_name(layer.name) for layer in ours} == by_name.keys():
            names |= {layer.name: by_name[normalised_name(layer.name)] for layer in ours}
    return names


def _by_order(left: Sequence[Layer], right: Sequence[Layer], pairing: Pairing) -> dict[str, str]:
    """Pair each layer that is left over with the first free one. Pairs that follow from it come before the next."""
    for layer in left:
        free = (
            candidate for candidate in right if layer.name not in pairing.names and candidate.name not in pairing.names.values()
        )
        if (other := next((candidate for candidate in free if signature(candidate) == signature(layer)), None)) is not None:
            pairing.pair(layer.name, other.name)
            pairing.propagate()
    return pairing.names


def _describe_ambiguous(left: Sequence[Layer], right: Sequence[Layer], pairing: Pairing, user_pairs: Mapping[str, str]) -> str:
    """Describe layers that nothing distinguishes, with a suggested pair of `--map` for each."""
    sides = with_parameters(left), with_parameters(right)
    known = dict(pairing.names)
    ambiguous: list[str] = []
    while len(pairing.names) < len(sides[0]):
        ours = [layer for layer in sides[0] if layer.name not in pairing.names]
        theirs = [layer for layer in sides[1] if layer.name not in pairing.names.values()]
        groups = [*_group_layers(ours, theirs)]
        ambiguous = ambiguous or [" with ".join(", ".join(layer.name for layer in side) for side in group) for group in groups]
        mine, others = groups[0]
        pairs = _guess_pairs(mine, others, *sides, pairing.names)
        if not pairs:
            one = mine[0].name
            scores = {
                layer.name: (pairing.has_equal_inputs(one, layer.name), _name_similarity(one, layer.name)) for layer in others
            }
            pairs = [(one, max(scores, key=lambda other: scores[other]))]
        for one, other in pairs:
            pairing.pair(one, other)
        pairing.propagate()
    guessed = {**user_pairs, **{one: other for one, other in pairing.names.items() if one not in known}}
    words = " ".join("--map " + shlex.quote(f"{one}={other}") for one, other in guessed.items())
    return (
        "Several layers have the same kind and shapes. Neither names nor the paths through the models tell them apart: "
        f"{'; '.join(ambiguous)}. Name the pairs with --map torch.name=keras.name, once for each. "
        f"Perhaps {words}."
    )


def _name_similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, normalised_name(one), normalised_name(other)).ratio()


def _guess_pairs(
    ours: Sequence[Layer], theirs: Sequence[Layer], left: Sequence[Layer], right: Sequence[Layer], names: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Suggest pairs by the known layer in front of each, else by similar names. May be empty."""
    known = {name: name for name in names.values()}
    in_front = [
        _preceding_layers(side, layers, known_names)
        for side, layers, known_names in ((ours, left, names), (theirs, right, known))
    ]
    if None not in in_front[0].values() and {*in_front[0].values()} == {*in_front[1].values()}:
        by_front = {front: name for name, front in in_front[1].items()}
        if len(by_front) == len(theirs):
            return [(name, by_front[front]) for name, front in in_front[0].items()]
    scored = sorted(
        ((_name_similarity(one.name, other.name), one.name, other.name) for one in ours for other in theirs),
        reverse=True,
    )
    pairs: dict[str, str] = {}
    for score, one, other in scored:
        last = len(pairs) == len(ours) - 1
        if one not in pairs and other not in pairs.values() and (score > _MIN_NAME_SIMILARITY or (last and pairs)):
            pairs[one] = other
    return [(one.name, pairs[one.name]) for one in ours] if len(pairs) == len(ours) else []


def _preceding_layers(side: Sequence[Layer], layers: Sequence[Layer], known: Mapping[str, str]) -> dict[str, str | None]:
    """Return, by layer, the right model's name of the last known layer that ran before it."""
    preceding: dict[str, str | None] = {}
    last: str | None = None
    for layer in layers:
        last = known.get(layer.name, last)
        if layer in side:
            preceding[layer.name] = last
    return preceding


def pair_layers(
    left: Sequence[Layer], right: Sequence[Layer], names: Mapping[str, str], layers_agree: LayersAgree | None = None
) -> list[tuple[str, str]]:
    """Return the names of corresponding layers, in the left model's order of execution.

    Calls of one layer with parameters are paired if their inputs or outputs agree, layers without parameters of one kind if
    both do. The others are paired by order; layers without parameters only between the same layers with parameters.

    Args:
        left, right: layers as they ran.
        names: pairs of layers with parameters.
        layers_agree: compares values. None: nothing was measured, so order alone counts.
    """
    pairs: dict[str, str] = {}
    for name, other in names.items():
        calls = [
            [layer for layer in side if layer.name.partition("#")[0] == layer_name]
            for side, layer_name in ((left, name), (right, other))
        ]
        if layers_agree is not None:
            _pair_first_fits(calls, pairs, _agree_in_values(layers_agree, any))
        _pair_first_fits(calls, pairs, lambda one, other: True)
    others = [[layer for layer in side if not layer.parameters] for side in (left, right)]
    if layers_agree is not None:
        for criterion in (all, operator.itemgetter(0), any):
            _pair_first_fits(others, pairs, _agree_in_values(layers_agree, criterion))
    places = [{layer.name: place for place, layer in enumerate(side)} for side in (left, right)]
    anchors = [(layer.name, pairs[layer.name]) for layer in left if layer.parameters and layer.name in pairs]
    start = other_start = 0
    for name, other in [*anchors, (None, None)]:
        end = len(left) if name is None else places[0][name]
        other_end = len(right) if other is None else places[1][other]
        if other_end >= other_start:  # else a branch that runs in another order
            if (
                name is None or other is None or layers_agree is None or not any(layers_agree(name, other))
            ):  # else nothing in front differs
                ours = [layer for layer in left[start:end] if layer in others[0] and layer.name not in pairs]
                theirs = [
                    layer for layer in right[other_start:other_end] if layer in others[1] and layer.name not in pairs.values()
                ]
                pairs |= _pair_by_kind(ours, theirs)
            other_start = other_end + 1
        start = end + 1
    return [(layer.name, pairs[layer.name]) for layer in left if layer.name in pairs]


def _pair_first_fits(sides: Sequence[Sequence[Layer]], pairs: dict[str, str], fits: Callable[[Layer, Layer], bool]) -> None:
    """Add pairs of layers that fit, each with the first free one."""
    for layer in sides[0]:
        free = (candidate for candidate in sides[1] if layer.name not in pairs and candidate.name not in pairs.values())
        if (other := next((candidate for candidate in free if fits(layer, candidate)), None)) is not None:
            pairs[layer.name] = other.name


def _agree_in_values(
    layers_agree: LayersAgree, criterion: Callable[[tuple[bool, bool]], bool]
) -> Callable[[Layer, Layer], bool]:
    return lambda one, other: _kind(one) == _kind(other) and criterion(layers_agree(one.name, other.name))


def _pair_by_kind(left: Sequence[Layer], right: Sequence[Layer]) -> dict[str, str]:
    matcher = SequenceMatcher(None, [*map(_kind, left)], [*map(_kind, right)], autojunk=False)
    return {
        left[block.a + place].name: right[block.b + place].name
        for block in matcher.get_matching_blocks()
        for place in range(block.size)
    }


def _kind(layer: Layer) -> str:
    return _FAMILIES.get(layer.kind, layer.kind)


def describe_layer(layer: Layer | None) -> str:
    """Describe a layer: `conv1 (conv 3x3x1x8, net.py:12)`."""
    if layer is None:
        return "no layer"
    size = "x".join(map(str, signature(layer)[1:])) if layer.parameters else "x".join(map(str, layer.output))
    return f"{layer.name} ({layer.kind} {size}{f', {layer.where}' if layer.where else ''})"


def normalised_name(name: str) -> str:
    """Return a layer's name in lower case, without separators, which frameworks write differently."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _layer_at(layers: Sequence[Layer], place: int) -> Layer | None:
    return layers[place] if place < len(layers) else None
