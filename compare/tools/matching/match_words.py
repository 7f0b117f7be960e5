"""The words of `match`: its statements, and every cause of a difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from compare.cli.wording import count, joined, listed
from compare.judgement import statement_words
from compare.judgement.statement import Statement
from compare.judgement.statement_words import Below, Template
from compare.tools.matching.causes import BIASED_VARIANCE, LOWER_PRECISION, ROUNDED_CONSTANTS, Cause
from compare.tools.matching.corrections import AcceptOption, correction

_MOST_CLASSES = 8
"""Largest number of classes that a sentence lists one by one."""
_MOST_PARAMETERS = 4
_MOST_PLACES = 3
KNOWN_CAUSES = {
    "layer-missing": "A layer with parameters is in one model only, or has another shape.",
    "pairing": "Layers of the same kind and shapes may be paired wrongly. `--map` names the right pairs.",
    "bias-missing": "A bias (or a scale or shift) is in one model only.",
    "flatten-order": "An image is flattened in the order height, width, channels in one model, channels first in the other.",
    "kernel-layout": "A kernel was copied with its axes in another order.",
    "initialisation": "As built, parameters are drawn from other distributions, or are other draws.",
    "input-scaling": "Pixels are scaled or shifted in one model.",
    "data-format": "Axes of the image are mixed up: reshaped instead of transposed, or normalised along the wrong one.",
    "order": "Layers run in another order, or channels are joined in another one.",
    "float32": "One model computes in float32 where float64 was asked for.",
    ROUNDED_CONSTANTS: (
        "TensorFlow keeps a constant (of GELU, a slope, a scaling) in float32, PyTorch a sixth in the gradient of a hard "
        "sigmoid. Accepted if nothing larger is behind it."
    ),
    LOWER_PRECISION: (
        "A framework computes a layer in float32 whatever it is given, as TensorFlow resizes images. Accepted if nothing "
        "larger is behind it."
    ),
    "addition-missing": "An earlier value is added (a residual connection) in one model only.",
    "padding": (
        "Padding lies on other sides, as TensorFlow's `same` with a stride, or has other values than zeros. A transposed "
        "convolution is cut on other sides."
    ),
    "activation": "Another activation, another variant of it (GELU), another slope, or none, also in front of an addition.",
    "pooling": "Another pooling, window or padding.",
    "interpolation": "An image is resized by another rule: nearest, bilinear, bicubic, with aligned corners.",
    "attention": "Scores of an attention are scaled by another factor, or it has another number of heads.",
    "normalisation-place": "A normalisation stands in another place, such as behind an activation or behind a block.",
    "epsilon": "A normalisation adds another epsilon.",
    "batch-norm-mode": "A normalisation uses the batch's statistics in one model and the running ones in the other.",
    "dropout-active": "Dropout is active in one model only, or in inference.",
    "dropout-rate": "Dropout has another rate, or drops whole channels in one model only.",
    "softmax-output": "One model returns probabilities, the other logits.",
    "batch-norm-momentum": "Running statistics move by another weight; Keras's momentum is 1 minus PyTorch's.",
    BIASED_VARIANCE: "Running variances are biased in one model. Keras's own layer cannot do otherwise.",
    "frozen": "A layer is trained in one model only.",
    "label-encoding": "A loss takes labels as other classes.",
    "loss": "Another loss: sum for mean, probabilities for logits, label smoothing, a regularizer.",
    "class-weights": "A loss weights the classes in one model only, by others, or divides by another number.",
    "adam-epsilon": "Adam adds another epsilon, or adds it before the bias is corrected, as Keras does.",
    "rmsprop": "RMSprop has another decay or epsilon, or adds epsilon below the root, as Keras does.",
    "weight-decay": "Weight decay is another, or part of the gradient (coupled) in one optimizer only.",
    "learning-rate": "Another learning rate, schedule, rule or momentum, or another setting of an optimizer.",
}
"""Every cause by name."""


def sentences(statements: Iterable[Statement]) -> list[str]:
    """Statements on two models in words."""
    return statement_words.sentences(statements, templates=TEMPLATES)


def cause_sentence(cause: Cause) -> str:
    """One cause in words, and what to write in Keras. Without its experiment."""
    key = f"{cause.name}/{cause.variant}" if cause.variant else cause.name
    sentence, clause = statement_words.fill(CAUSES[key], cause.values), correction(cause)
    if cause.name == BIASED_VARIANCE or not clause:  # its sentence says it already
        return sentence
    return f"{sentence} {f'A{clause[1:]}' if isinstance(clause, AcceptOption) else f'In Keras, {clause}'}."


def cause_lines(causes: Iterable[Cause]) -> list[str]:
    """Several causes, a line for each. Causes of several layers that take the same correction share a line."""
    groups: dict[tuple[str, str], list[Cause]] = {}
    for cause in causes:
        groups.setdefault((cause.name, correction(cause) or cause_sentence(cause).removesuffix(".")), []).append(cause)
    return [_cause_line(name, clause, group) for (name, clause), group in groups.items()]


def _cause_line(name: str, clause: str, group: Sequence[Cause]) -> str:
    places = listed(dict.fromkeys(place for cause in group for place in cause.places), _MOST_PLACES)
    sizes = [cause.size for cause in group if cause.size is not None]
    status = "" if all(cause.is_verified for cause in group) else " (not tried out)"
    if any(cause.residual is not None and not cause.is_verified for cause in group):
        status = " (not verified)"
    at = f" at {places}" if any(cause.places for cause in group) else ""
    return f"{name}{at}{f', alone {max(sizes):.1e}' if sizes else ''}{status}: {clause}."


def experiment(cause: Cause) -> str:
    """Result of the experiment, as a sentence."""
    if cause.residual is None:
        return f"Not tried out: read from the {'values' if cause.name == LOWER_PRECISION else 'models'}."
    if math.isinf(cause.residual):
        return "Not verified: no correction was found."
    if cause.size is None:
        return f"Verified: with this corrected, the two differ by {cause.residual:.1e} there."
    also = f" (less at {listed(cause.places[1:], _MOST_PLACES)})" if cause.places[1:] else ""
    differ = f"{cause.size:.1e} at {cause.at}{also}, and by {cause.residual:.1e} once corrected"
    return f"Verified: alone it makes the two differ by {differ}."


def note_line(cause: Cause) -> str:
    """Say in a line what a difference that this match has evened out means to the user."""
    return NOTES[cause.name].format(**cause.values)


def note(cause: Cause) -> str:
    """The cause with its lines alone."""
    return f"{cause.name}: {cause_sentence(cause)}{f' See {cause.where}.' if cause.where else ''}"


def _cause(values: Mapping[str, Any]) -> str:
    """The cause with its experiment and its lines."""
    cause = Cause(**{field: values[field] for field in Cause._fields if field in values})
    if cause.residual is None and values["is_tried"]:
        cause = cause._replace(residual=math.inf)
    where = f" See {cause.where}." if cause.where else ""
    return f"{cause.name}: {cause_sentence(cause)} {experiment(cause)}{where}"


def _cause_behind(values: Mapping[str, Any]) -> str:
    return f"Behind it, {_cause(values)}"


def optimizer_words(values: Mapping[str, Any]) -> str:
    """Settings that only one optimizer has, or that differ. Empty if there are none."""
    one, other = values["one"], values["other"]
    settings = [
        f"{key}: {one} {'none' if mine is None else mine}, {other} {'none' if theirs is None else theirs}"
        for key, mine, theirs in values["settings"]
    ]
    return f"The optimizers have other settings: {'; '.join(settings)}." if settings else ""


def _optimizers(text: str, words: Callable[[Mapping[str, Any]], str]) -> Template:
    """Template of what both optimizers do. `{0}` and `{1}` are their clauses."""
    return lambda values: text.format(*map(words, values["optimizers"]), **values)


def _forms(text: str, words: Callable[[Any], str] = str) -> Callable[[Mapping[str, Any]], str]:
    """Template of a form that each side has. `{0}` and `{1}` are the forms, or all that these values do not tell apart."""
    return lambda values: text.format(*(_one_of([*map(words, forms)]) for forms in values["forms"]), **values)


def _one_of(forms: Sequence[str]) -> str:
    first, *others = forms
    return f"{first} (these values do not tell it from {', '.join(others)})" if others else first


def _pairing(values: Mapping[str, Any]) -> str:
    pairs = [" were paired with ".join(", ".join(names) for names in sides) for sides in values["paired"]]
    return f"{'; '.join(pairs)}, by their order alone. If that is wrong, name the pairs with --map."


def _initialisation(values: Mapping[str, Any]) -> str:
    sizes = ["{} ({:.2g} and {:.2g})".format(entry["parameter"], *entry["root_mean_squares"]) for entry in values["parameters"]]
    return (
        f"As built, {values['one']} and {values['other']} draw parameters of another size (root mean square): "
        f"{listed(sizes, _MOST_PARAMETERS)}. Trainings that start from these differ."
    )


def _input_scaling(values: Mapping[str, Any]) -> str:
    scale, shift = (_channels(values[key]) for key in ("scale", "shift"))
    return f"{values['other']}'s first layer sees {values['one']}'s pixels times {scale}, plus {shift}."


def _channels(numbers: Sequence[float]) -> str:
    """One number, or a list of one for each channel where they differ."""
    words = [f"{number:.6g}" for number in numbers]
    is_one = all(math.isclose(number, numbers[0], rel_tol=1e-7, abs_tol=1e-9) for number in numbers)
    return words[0] if is_one else f"[{', '.join(words)}]"


def _order(values: Mapping[str, Any]) -> str:
    one, other = values["one"], values["other"]
    action = "concatenates" if values["concatenates"] else "joins the same channels"
    runs = [f"{first} to {last}" if last > first else f"{first}" for first, last in values["channels"]]
    channels = f": its channels are {one}'s {joined(runs)}, from 0" if runs else ""
    return f"{other} {action} in another order than {one}{channels}."


def _padding(padding: Sequence[Sequence[int]]) -> str:
    (top, bottom), (left, right) = padding
    return f"{top} above and {bottom} below, {left} left and {right} right"


def _padded(values: Mapping[str, Any]) -> str:
    """How each side pads. That it pads with zeros is said only beside another mode."""
    modes = {mode for forms in values["forms"] for _, mode in forms}
    with_mode = {mode: f" by mode {mode}" for mode in modes} | {"zeros": " with zeros" if len(modes) > 1 else ""}
    return _forms("{one} pads {0}, {other} {1}.", lambda form: f"{_padding(form[0])}{with_mode[form[1]]}")(values)


def _pool(form: Sequence[Any]) -> str:
    figure, window, *padded = form
    text = f"the {figure} of {'x'.join(map(str, window))}"
    if not padded:
        return text
    padding, around = padded
    words = {"ignored": "", "zeros": ", with zeros", "counted": ", padding counted", "not counted": ", padding not counted"}
    return f"{text}, padded {_padding(padding)}{words[around]}"


def _activation(values: Mapping[str, Any]) -> str:
    ends = ", ".join(values["layers"]) or "the output"
    functions = f" ({', '.join(values['functions'])})" if values["functions"] else ""
    place = f"At {ends}" if values["same_input"] else f"In front of {ends}{functions}"
    return _forms("{place}: {one} applies {0}, {other} {1}.")({**values, "place": place})


def _batch_norm_mode(values: Mapping[str, Any]) -> str:
    ours, theirs = ("the batch's statistics" if batch else "the running ones" for batch in values["batch"])
    text = "In {mode} {one}'s {layers[0]} uses {ours}, {other}'s {layers[1]} {theirs}."
    return text.format(ours=ours, theirs=theirs, **values)


def _outputs(values: Mapping[str, Any]) -> str:
    ours, theirs = values["outputs"]
    hint = " Labels that start at 1 need one more." if abs(ours - theirs) == 1 else ""
    return f"{values['one']} returns {ours} values for each image, {values['other']} {theirs}.{hint}"


def _flatten_order(values: Mapping[str, Any]) -> str:
    orders = {"chw": "channels, height, width", "hwc": "height, width, channels"}
    (one, other), (ours, theirs) = values["layers"], (orders[order] for order in values["orders"])
    copied = "The rows of its kernel were reordered. If you copy these weights by hand, do so too"
    end = copied if values["copied"] else "If you copy these weights by hand, reorder the rows of its kernel"
    places, axes = ("C, H, W", "1, 2, 0") if values["orders"][0] == "chw" else ("H, W, C", "2, 0, 1")
    end += f": kernel.reshape({places}, -1).transpose({axes}, 3).reshape(C * H * W, -1), where kernel is PyTorch's weight.T."
    return f"{one} takes an image flattened as {ours} in {values['one']}, {other} as {theirs} in {values['other']}. {end}"


def _weights_of_classes(classes: Sequence[int], weights: Sequence[float]) -> str:
    """Class weights as a ratio: `the classes 0, 1, 2 as 1 : 2 : 0.5`."""
    if all(weight == 1 for weight in weights):
        return "all classes alike"
    more = ", ..." if len(classes) > _MOST_CLASSES else ""
    ratio = " : ".join(f"{weight:.6g}" for weight in weights[:_MOST_CLASSES])
    return f"the classes {', '.join(map(str, classes[:_MOST_CLASSES]))}{more} as {ratio}"


def _class_weights(values: Mapping[str, Any]) -> str:
    ours, theirs = (_weights_of_classes(values["classes"], weights) for weights in values["weights"])
    return f"{values['one']} weights {ours}, {values['other']} {theirs}."


def _class_weights_divisor(values: Mapping[str, Any]) -> str:
    divisors = [
        "the sum of the weights" if math.isclose(total, 1) else "another number, such as that of the images"
        for total in values["sums"]
    ]
    weights = _weights_of_classes(values["classes"], values["weights"][0])
    return f"Both weight {weights}. {values['one']} divides by {divisors[0]}, {values['other']} by {divisors[1]}."


def _schedule(values: Mapping[str, Any]) -> str:
    rates = " and ".join(f"{optimizer['learning_rate']:.9g}" for optimizer in values["optimizers"])
    return f"The optimizers start at the learning rates {rates}. {optimizer_words(values)}"


_MOMENTUM = (
    "{one}'s {layers[0]} gives the new batch the weight {weights[0]:.6g} in its running statistics, {other}'s {layers[1]} "
    "{weights[1]:.6g}"
)
_LAYOUT = "{other}'s {parameter} holds {one}'s values {form}."
_LOSSES = "{one} computes the {losses[0]}, {other} the {losses[1]}."
CAUSES: dict[str, Template] = {
    "layer-missing": "{one} has {layers[0]}, where {other} has {layers[1]}.",
    "pairing": _pairing,
    "bias-missing": "{one}'s {layer} has no {role}. Without it, the layers agree.",
    "bias-missing/parameter": "{one}'s {layers[0]} has a {role}, {other}'s {layers[1]} has none.",
    "flatten-order": _LAYOUT,
    "flatten-order/evened-out": _flatten_order,
    "kernel-layout": _LAYOUT,
    "initialisation": _initialisation,
    "initialisation/draws": (
        "As built, both draw parameters of the same size (root mean square). Only the draws differ. Leave --as-built out: "
        "then weights are copied."
    ),
    "input-scaling": _input_scaling,
    "data-format/axes": "{other}'s {layer} sees {one}'s {axes:,} as height, width, channels.",
    "data-format/image": "{other}'s first layer sees {one}'s image {form}.",
    "data-format/axis": "{other}'s {layers[1]} normalises along axis {axis[1]}, {one}'s along the channels.",
    "data-format/shape": "{one}'s {layer} normalises along axis {axis}, not along the channels.",
    "order": _order,
    "order/layers": (
        "{one} calls {layer} where {other} calls {called}. If only the names are exchanged, add --map {layer}={called}."
    ),
    "float32": "{one}'s values are rounded to float32, where float64 was asked for.",
    "float32/layer": "{one}'s {layer} computes in {dtype}, where float64 was asked for.",
    f"{ROUNDED_CONSTANTS}/scaling": "{one}'s {layer} scales and shifts by constants that are rounded to float32.",
    f"{ROUNDED_CONSTANTS}/activation": "{one} computes its {activation} with constants that are rounded to float32.",
    f"{ROUNDED_CONSTANTS}/gradient": (
        "Behind {layer}, {one} multiplies the gradient of a hard sigmoid by a sixth that is rounded to float32, where float64 "
        "was asked for."
    ),
    LOWER_PRECISION: "{one} computes these values in float32, where float64 was asked for: none has more digits.",
    f"{LOWER_PRECISION}/layer": "{one}'s {layer} computes in float32, whatever it takes: of its values, none has more digits.",
    "addition-missing": "{one} adds an earlier value (a residual connection), {other} does not.",
    "padding": _padded,
    "padding/cut": _forms("{one} cuts off {0} of the whole map, {other} {1}.", _padding),
    "activation": _activation,
    "activation/addition": _forms(
        "In front of an addition: {one} applies {0}, {other} {1}.",
        lambda form: f"{form[0]}{' (behind the sum ReLU)' if form[1] else ''}",
    ),
    "pooling": _forms("{one} takes {0}, {other} {1}.", _pool),
    "interpolation": _forms("{one} resizes by {0}, {other} by {1}."),
    "attention": _forms(
        "{one} multiplies the scores of its attention by {0}, {other} by {1}.",
        lambda form: f"{form[0]:.6g} in {count(form[1], 'head')}",
    ),
    "normalisation-place": _forms("{one} has the normalisation {layers[0]} {0}, {other} has {layers[1]} {1}."),
    "epsilon": "{one}'s {layers[0]} adds epsilon {epsilon[0]:g}, {other}'s {layers[1]} {epsilon[1]:g}.",
    "batch-norm-mode": _batch_norm_mode,
    "dropout-active/inference": "{one} drops {rate:.4g} of the values also in inference, {other} none.",
    "dropout-active/training": "{one} drops {rate:.4g} of the values in training, {other} none.",
    "dropout-rate": "{one} drops {rates[0]:.4g} of the values, {other} {rates[1]:.4g}.",
    "dropout-rate/channels": "{one} drops whole channels, {other} single values.",
    "softmax-output": "{one} returns {returns}, {other} logits.",
    "batch-norm-momentum": f"{_MOMENTUM}.",
    "batch-norm-momentum/complement": f"{_MOMENTUM}, as if it were the weight of the old ones.",
    BIASED_VARIANCE: (
        "{one}'s running variance of {layer} is the biased one; the other's is {times:.6g} times as large. No option of "
        "Keras's layer changes that. --accept biased-variance lets it pass."
    ),
    "frozen": "{one} does not train {parameter}: its gradient is zero.",
    "label-encoding": _LOSSES,
    "label-encoding/outputs": _outputs,
    "loss": _LOSSES,
    "class-weights": _class_weights,
    "class-weights/divisor": _class_weights_divisor,
    "adam-epsilon": _optimizers(
        "{one}'s Adam adds epsilon {0}, {other}'s {1}.",
        lambda optimizer: (
            f"{optimizer['epsilon']:g} {'before' if optimizer['epsilon_before_correction'] else 'after'} the bias is corrected"
        ),
    ),
    "rmsprop": _optimizers(
        "{one}'s RMSprop adds epsilon {0}; {other}'s {1}.",
        lambda optimizer: (
            f"{optimizer['epsilon']:g} {'below' if optimizer['epsilon_below_root'] else 'behind'} the root, with decay "
            f"{optimizer['decay']:g}"
        ),
    ),
    "weight-decay": _optimizers(
        "{one} decays weights by {0}, {other} by {1}.",
        lambda optimizer: (
            f"{optimizer['weight_decay']:g} "
            f"{'as part of the gradient (coupled)' if optimizer['coupled'] else 'beside it (decoupled)'}"
        ),
    ),
    "weight-decay/regularizer": (
        "{one} adds a regularizer to the loss: {factor:.6g} times the square of each weight of some layers."
    ),
    "learning-rate": _optimizers(
        "{one} takes {0}; {other} {1}.",
        lambda optimizer: "rule {rule}, learning rate {learning_rate:.9g}, momentum {momentum:.9g}".format(**optimizer),
    ),
    "learning-rate/schedule": _schedule,
    "learning-rate/settings": optimizer_words,
}
"""Sentence of every cause by its name, and by its variant if it has several."""


NOTES = {
    "flatten-order": "If you copy weights by hand, reorder the rows of {layers[1]} (--full says how).",
    "initialisation": "Not counted: as built, both draw other initial weights. For this match they were copied.",
}
"""Line on the first screen for each difference that a match evens out."""
TOLERATED = {
    "settings": "settings that differ",
    "accepted": "what was accepted",
    ROUNDED_CONSTANTS: "constants that a framework rounds to float32",
    LOWER_PRECISION: "what a framework computes in float32",
}
"""Differences that are tolerated in models that hold, see `Match.tolerated_difference`."""
_MODELS = "{models[0]} and {models[1]}"
_RUNGS_AGREE = "In float64 all {rungs} checks agree: outputs, gradients, updates, and {steps:step} of training."


def _tolerating(text: str) -> Template:
    return lambda values: statement_words.fill(text, {**values, "but": TOLERATED[values["but"]]})


def _rung_differs(values: Mapping[str, Any]) -> str:
    size = "" if values["difference"] is None else f" by {values['difference']:.1e}"
    where = f" at {values['where']}" if values["where"] else ""
    qualifier = (
        ", accepted" if values["accepted"] else f", only by {TOLERATED[values['rounding']]}" if values["rounding"] else ""
    )
    under = f", with {values['under']}" if values["under"] else ""
    return f"{values['rung']}: differs{size}{where}{qualifier}{under}."


def _difference_begins(values: Mapping[str, Any]) -> str:
    rest = "" if values["rest_judged"] else " Layers behind it were not judged."
    if values.get("judged_in_part"):
        rest = " Layers behind it were judged in part."
    return f"The difference begins at {values['where']}, with {values['by']:.1e}.{rest}"


def _no_known_cause(values: Mapping[str, Any]) -> str:
    hint = " The table of layers shows where the difference begins." if values["in_table"] else ""
    return f"None of the known causes explains it.{hint}"


TEMPLATES: dict[str, Template | Below] = {
    "models_same": f"Yes: {_MODELS} are the same model. {_RUNGS_AGREE}",
    "models_agree": _tolerating(f"Yes, except {{but}}: {_MODELS}. {_RUNGS_AGREE}"),
    "models_hold": _tolerating("Yes, except {but}."),
    "models_part": 'No: the first check that fails is "{rung}".',
    "models_part_by_convention": (
        "The same but for {rung}: Keras keeps the biased variance in BatchNorm, and has no option for the other one. No "
        "other check fails. The exit code is 1 until you accept this: add --accept {accept}."
    ),
    "models_not_judged": (
        "Cannot tell: what was accepted changes all that follows, so these were not judged: {unjudged:;}. Mend the port, and "
        "match again."
    ),
    "settings_may_part": ("These settings differ. All values that were compared agree, and others may not: {settings:,}."),
    "settings_may_even_out": "These settings differ too, unless other layers undo that: {settings:6}.",
    "rung_differs": _rung_differs,
    "difference_begins": Below(_difference_begins),
    "cause": Below(_cause),
    "cause_behind": Below(_cause_behind),
    "no_known_cause": Below(_no_known_cause),
    "fault_between": Below("The fault lies {place}."),
    "faults_without_name": (
        "A subclassed Keras model calls functions that are not recorded. A fault in one of them has no name here."
    ),
    "functions_not_recorded": (
        "A subclassed Keras model calls functions that are not recorded. Their results were compared, their settings were not."
    ),
    "nothing_proved": "{rung}: nothing is proved by {by:;}.",
    "optimizers_differ": lambda values: f"{optimizer_words(values)} They may act later than in these steps.",
}
"""Words by kind of statement on two models."""
