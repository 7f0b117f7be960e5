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
from compare.matching.paths import Pairing

_FAMILIES = {"average_pool": "max_pool", "global_max_pool": "global_average_pool"}
"""Kinds that may stand for each other: a porter may have taken the wrong one."""

_ALIKE = 0.7
"""Two names that are so much alike may stand for each other."""

Alike = Callable[[str, str], tuple[bool, bool]]
"""Whether two layers, by name, take and give the same."""


@dataclass(frozen=True)
class Alignment:
    """Two models, layer by layer."""

    pairs: list[tuple[str, str]]
    """Names of layers that stand for each other, in the left model's order of execution."""
    names: dict[str, str]
    """The same of layers with parameters alone."""
    incompatible: list[tuple[Layer | None, Layer | None]]
    """Layers with parameters that have no counterpart, first beside first."""
    given: frozenset[str] = frozenset()
    """Left names of the pairs that order did not tell: the user, names or paths did."""


def align(left: Sequence[Layer], right: Sequence[Layer], given: Mapping[str, str]) -> Alignment:
    """Pair layers by kind and shapes. Where several are alike, names tell, then paths through the models, then order.

    Args:
        left: one model's layers as they ran.
        right: the other's.
        given: pairs that the user names.

    Raises:
        SpecError: several pairings fit, or a name of the user does not.
    """
    ours, theirs = with_parameters(left), with_parameters(right)
    names = _given(ours, theirs, given)
    told = frozenset(given)
    ours = [each for each in ours if each.name not in names]
    theirs = [each for each in theirs if each.name not in names.values()]
    incompatible: list[tuple[Layer | None, Layer | None]] = []
    if Counter(map(signature, ours)) == Counter(map(signature, theirs)):
        same_order = [*map(signature, ours)] == [*map(signature, theirs)]
        names |= _by_name(ours, theirs)
        pairing = Pairing(left, right, names, signature)
        told = frozenset(pairing.follow())
        names = pairing.names
        if same_order:
            names = _by_order(ours, theirs, pairing)
        elif len(names) < len(with_parameters(left)):
            raise SpecError(_open_words(left, right, pairing, given))
    else:
        pairing = Pairing(left, right, names, signature)
        if pairing.complete:
            names = pairing.follow()
            told = frozenset(names)
            ours = [each for each in ours if each.name not in names]
            theirs = [each for each in theirs if each.name not in names.values()]
        matcher = SequenceMatcher(None, [*map(signature, ours)], [*map(signature, theirs)], autojunk=False)
        for what, start, end, other_start, other_end in matcher.get_opcodes():
            mine, others = ours[start:end], theirs[other_start:other_end]
            if what == "equal":
                names |= {one.name: other.name for one, other in zip(mine, others, strict=True)}
            else:
                for place in range(max(len(mine), len(others))):
                    incompatible.append((_at(mine, place), _at(others, place)))
    order = [each.name for each in left]
    names = dict(sorted(names.items(), key=lambda pair: order.index(pair[0])))
    return Alignment(paired(left, right, names), names, incompatible, told)


def with_parameters(layers: Sequence[Layer]) -> list[Layer]:
    """Layers with parameters, each once."""
    return [each for each in layers if each.parameters and "#" not in each.name]


def signature(layer: Layer) -> tuple[Any, ...]:
    """What two layers must share to stand for each other. A missing bias is no reason to part them."""
    shape = layer.parameters.get("kernel") or next(iter(layer.parameters.values()))
    return layer.kind, *shape


def _given(left: Sequence[Layer], right: Sequence[Layer], given: Mapping[str, str]) -> dict[str, str]:
    for names, layers in ((given, left), (given.values(), right)):
        known = [each.name for each in layers]
        for name in names:
            if name not in known:
                raise SpecError(
                    f"--map names no layer with parameters. Received: {name}. Use {', '.join(known) or 'none: there is none'}."
                )
    by_name = {each.name: each for each in (*left, *right)}
    for one, other in given.items():
        if signature(by_name[one]) != signature(by_name[other]):
            raise SpecError(
                f"--map pairs layers of other shapes. Received: {in_words(by_name[one])}, {in_words(by_name[other])}."
            )
    return dict(given)


def _grouped(*sides: Sequence[Layer]) -> Generator[list[list[Layer]]]:
    """Layers of both sides, by kind and shapes."""
    for each in dict.fromkeys(map(signature, sides[0])):
        yield [[layer for layer in side if signature(layer) == each] for side in sides]


def _by_name(left: Sequence[Layer], right: Sequence[Layer]) -> dict[str, str]:
    """Pairs of layers of the same kinds and shapes whose names agree, all of a kind or none."""
    names: dict[str, str] = {}
    for ours, theirs in _grouped(left, right):
        by_name = {plain(layer.name): layer.name for layer in theirs}
        if {plain(layer.name) for layer in ours} == by_name.keys():
            names |= {layer.name: by_name[plain(layer.name)] for layer in ours}
    return names


def _by_order(left: Sequence[Layer], right: Sequence[Layer], pairing: Pairing) -> dict[str, str]:
    """Pairs of the layers that are left over, each with the first. What follows from a pair comes before the next."""
    for one in left:
        free = (each for each in right if one.name not in pairing.names and each.name not in pairing.names.values())
        if (other := next((each for each in free if signature(each) == signature(one)), None)) is not None:
            pairing.pair(one.name, other.name)
            pairing.follow()
    return pairing.names


def _open_words(left: Sequence[Layer], right: Sequence[Layer], pairing: Pairing, given: Mapping[str, str]) -> str:
    """Which layers nothing tells apart, and a pair of `--map` for each of them."""
    sides = with_parameters(left), with_parameters(right)
    known = dict(pairing.names)
    still_open: list[str] = []
    while len(pairing.names) < len(sides[0]):
        ours = [each for each in sides[0] if each.name not in pairing.names]
        theirs = [each for each in sides[1] if each.name not in pairing.names.values()]
        groups = [*_grouped(ours, theirs)]
        still_open = still_open or [
            " with ".join(", ".join(layer.name for layer in side) for side in group) for group in groups
        ]
        mine, others = groups[0]
        pairs = _guess(mine, others, *sides, pairing.names)
        if not pairs:
            one = mine[0].name
            likely = {each.name: (pairing.may_be(one, each.name), _likeness(one, each.name)) for each in others}
            pairs = [(one, max(likely, key=lambda other: likely[other]))]
        for one, other in pairs:
            pairing.pair(one, other)
        pairing.follow()
    guessed = {**given, **{one: other for one, other in pairing.names.items() if one not in known}}
    words = " ".join("--map " + shlex.quote(f"{one}={other}") for one, other in guessed.items())
    return (
        "Several layers have the same kind and shapes. Neither names nor the paths through the models tell them apart: "
        f"{'; '.join(still_open)}. Name the pairs with --map torch.name=keras.name, once for each. "
        f"Perhaps {words}."
    )


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, plain(one), plain(other)).ratio()


def _guess(
    ours: Sequence[Layer], theirs: Sequence[Layer], left: Sequence[Layer], right: Sequence[Layer], names: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Pairs that order does not tell: by the known layer in front of each, else by names that are alike. May be none."""
    known = {name: name for name in names.values()}
    in_front = [_in_front(side, every, of) for side, every, of in ((ours, left, names), (theirs, right, known))]
    if None not in in_front[0].values() and {*in_front[0].values()} == {*in_front[1].values()}:
        by_front = {front: name for name, front in in_front[1].items()}
        if len(by_front) == len(theirs):
            return [(name, by_front[front]) for name, front in in_front[0].items()]
    scored = sorted(
        ((_likeness(one.name, other.name), one.name, other.name) for one in ours for other in theirs),
        reverse=True,
    )
    found: dict[str, str] = {}
    for score, one, other in scored:
        last = len(found) == len(ours) - 1
        if one not in found and other not in found.values() and (score > _ALIKE or (last and found)):
            found[one] = other
    return [(one.name, found[one.name]) for one in ours] if len(found) == len(ours) else []


def _in_front(side: Sequence[Layer], every: Sequence[Layer], known: Mapping[str, str]) -> dict[str, str | None]:
    """By layer: the right model's name of the last known layer that ran before it."""
    found: dict[str, str | None] = {}
    last: str | None = None
    for layer in every:
        last = known.get(layer.name, last)
        if layer in side:
            found[layer.name] = last
    return found


def paired(
    left: Sequence[Layer], right: Sequence[Layer], names: Mapping[str, str], alike: Alike | None = None
) -> list[tuple[str, str]]:
    """Layers that stand for each other, in the left model's order of execution.

    Calls of one layer with parameters are paired by what they take or give. Layers without parameters of one kind are paired by
    what they take and give. What is left is paired by order, the latter between layers with parameters.

    Args:
        left, right: layers as they ran.
        names: pairs of layers with parameters.
        alike: compares values. None: nothing was measured, so order alone counts.
    """
    found: dict[str, str] = {}
    for name, other in names.items():
        calls = [[each for each in side if each.name.partition("#")[0] == own] for side, own in ((left, name), (right, other))]
        if alike is not None:
            _pair(calls, found, _by_values(alike, any))
        _pair(calls, found, lambda one, other: True)
    others = [[each for each in side if not each.parameters] for side in (left, right)]
    if alike is not None:
        for enough in (all, operator.itemgetter(0), any):
            _pair(others, found, _by_values(alike, enough))
    places = [{each.name: place for place, each in enumerate(side)} for side in (left, right)]
    anchors = [(each.name, found[each.name]) for each in left if each.parameters and each.name in found]
    done = other_done = 0
    for name, other in [*anchors, (None, None)]:
        end = len(left) if name is None else places[0][name]
        other_end = len(right) if other is None else places[1][other]
        if other_end >= other_done:  # else a branch that runs in another order
            if name is None or other is None or alike is None or not any(alike(name, other)):  # else nothing in front differs
                ours = [each for each in left[done:end] if each in others[0] and each.name not in found]
                theirs = [each for each in right[other_done:other_end] if each in others[1] and each.name not in found.values()]
                found |= _same_kinds(ours, theirs)
            other_done = other_end + 1
        done = end + 1
    return [(each.name, found[each.name]) for each in left if each.name in found]


def _pair(sides: Sequence[Sequence[Layer]], found: dict[str, str], fits: Callable[[Layer, Layer], bool]) -> None:
    """Add pairs of layers that fit to those that were found, each with the first."""
    for one in sides[0]:
        free = (each for each in sides[1] if one.name not in found and each.name not in found.values())
        if (other := next((each for each in free if fits(one, each)), None)) is not None:
            found[one.name] = other.name


def _by_values(alike: Alike, enough: Callable[[tuple[bool, bool]], bool]) -> Callable[[Layer, Layer], bool]:
    return lambda one, other: _kind(one) == _kind(other) and enough(alike(one.name, other.name))


def _same_kinds(left: Sequence[Layer], right: Sequence[Layer]) -> dict[str, str]:
    matcher = SequenceMatcher(None, [*map(_kind, left)], [*map(_kind, right)], autojunk=False)
    return {
        left[block.a + place].name: right[block.b + place].name
        for block in matcher.get_matching_blocks()
        for place in range(block.size)
    }


def _kind(layer: Layer) -> str:
    return _FAMILIES.get(layer.kind, layer.kind)


def in_words(layer: Layer | None) -> str:
    """`conv1 (conv 3x3x1x8, net.py:12)`."""
    if layer is None:
        return "no layer"
    size = "x".join(map(str, signature(layer)[1:])) if layer.parameters else "x".join(map(str, layer.output))
    return f"{layer.name} ({layer.kind} {size}{f', {layer.where}' if layer.where else ''})"


def plain(name: str) -> str:
    """A layer's name as far as frameworks agree on how to write one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _at(layers: Sequence[Layer], place: int) -> Layer | None:
    return layers[place] if place < len(layers) else None
