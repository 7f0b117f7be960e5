"""Models fitted to speed-ups at several sizes: the laws of Amdahl and Gustafson, and the alpha-beta model of communication."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from common.frozen import Frozen, Seconds
from common.spec import SpecError
from compare.statistics.statistics import Ratio, critical

Topology = Literal["ring", "server", "all_gather"]

Kind = Literal["strong", "weak"]
"""`strong`: the global batch is fixed; `weak`: it grows with the replicas."""
KINDS: tuple[Kind, ...] = ("strong", "weak")


class SerialFraction(Frozen):
    """The part of the work that cannot be shared, by one law, with its 95 % t-interval.

    The interval is valid however often repeats are added and looked at.
    """

    law: Literal["Amdahl", "Gustafson"]
    value: float
    """Below zero if replicas gain more than their number, e.g. by smaller batches in faster caches."""
    low: float | None
    """None for fewer than 3 repeats, which have no interval."""
    high: float | None
    n: int
    """Number of points."""

    @property
    def ratio(self) -> Ratio:
        """The fraction with its interval, as reports write it."""
        return Ratio(value=self.value, low=self.low, high=self.high, n=self.n)

    def speedup(self, replicas: float) -> float:
        """Return the speed-up that the law predicts."""
        if self.law == "Amdahl":
            share = self.value + (1.0 - self.value) / replicas
            return 1.0 / share if share > 0.0 else math.inf
        return replicas - self.value * (replicas - 1.0)


Repeats = Iterable[Sequence[tuple[int, float]]]
"""Points (replicas R, measured speed-up S) of each repeat. All points of a repeat share one serial run."""


def amdahl(repeats: Repeats) -> SerialFraction | None:
    """Fit 1 / S = s + (1 - s) / R, the speed-up of a fixed problem (Amdahl 1967), by least squares in s.

    Points of one replica are left out.
    """
    return _fit_slope(
        "Amdahl",
        (
            [(1.0 - 1.0 / replicas, 1.0 / speedup - 1.0 / replicas) for replicas, speedup in points if replicas > 1]
            for points in repeats
        ),
    )


def gustafson(repeats: Repeats) -> SerialFraction | None:
    """Fit S = R - s (R - 1), the speed-up of a problem that grows with the replicas (Gustafson 1988), by least squares.

    Points of one replica are left out.
    """
    return _fit_slope(
        "Gustafson",
        ([(replicas - 1.0, replicas - speedup) for replicas, speedup in points if replicas > 1] for points in repeats),
    )


def _fit_slope(law: Literal["Amdahl", "Gustafson"], repeats: Iterable[list[tuple[float, float]]]) -> SerialFraction | None:
    """Fit a slope through the origin. Points of a repeat share the noise of its serial run, so each repeat is one sample.

    The error adds up the residuals of a repeat before it squares them (Liang & Zeger 1986). If all repeats have the same sizes,
    that is the t-interval of their own slopes.
    """
    fits = [np.array(points).T for points in repeats if points]
    if not fits:
        return None
    weight = sum(float(x @ x) for x, _ in fits)
    slope = sum(float(x @ y) for x, y in fits) / weight
    low = high = None
    if (number := len(fits)) >= 3:
        residuals = [float(x @ (y - slope * x)) / weight for x, y in fits]
        error = math.sqrt(number / (number - 1) * sum(residual**2 for residual in residuals))
        half_width = critical(number - 1, number) * error
        low, high = slope - half_width, slope + half_width
    return SerialFraction(law=law, value=slope, low=low, high=high, n=sum(len(x) for x, _ in fits))


class LinkModel(Frozen):
    """The alpha-beta model of a link: a message of n bytes takes alpha + beta n seconds (Hockney 1994)."""

    name: str
    alpha_seconds: Seconds
    beta_seconds_per_byte: Seconds


_PRESETS = {
    # Latencies are round figures for such links with their software; rates are the links' own. Measure yours and say so.
    "10Gbit": LinkModel(name="10Gbit", alpha_seconds=50e-6, beta_seconds_per_byte=8 / 10e9),
    "100Gbit": LinkModel(name="100Gbit", alpha_seconds=10e-6, beta_seconds_per_byte=8 / 100e9),
    "nvlink": LinkModel(name="nvlink", alpha_seconds=5e-6, beta_seconds_per_byte=1 / 450e9),
}


def parse_link(text: str) -> LinkModel:
    """Parse a named network, or `ALPHA,BETA` in seconds and seconds per byte."""
    if text in _PRESETS:
        return _PRESETS[text]
    number = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
    match = re.fullmatch(rf"({number}),({number})", text)
    if not match or math.inf in map(float, match.groups()):
        raise SpecError(
            f"--network takes {', '.join(_PRESETS)}, or ALPHA,BETA in seconds and seconds per byte. Received: {text!r}. "
            "Use e.g. 5e-5,8e-10."
        )
    return LinkModel(name=text, alpha_seconds=float(match[1]), beta_seconds_per_byte=float(match[2]))


def exchange_terms(topology: Topology, replicas: int, gradient_bytes: float) -> tuple[float, float]:
    """The factors of alpha and beta for one exchange of all gradients among R replicas.

    ring: reduce-scatter and all-gather, 2 (R - 1) messages of n / R bytes (Patarasuk & Yuan 2009).
    server: R pushes and R pulls of n bytes through the server's one link.
    all_gather: for data that cannot be added on the way: R - 1 messages of n bytes, each passed on around a ring.

    Args:
        replicas: R.
        gradient_bytes: n, of one replica's gradients as they are sent.
    """
    if replicas < 2:
        return 0.0, 0.0
    if topology == "ring":
        return 2.0 * (replicas - 1), 2.0 * (replicas - 1) / replicas * gradient_bytes
    if topology == "all_gather":
        return replicas - 1.0, (replicas - 1.0) * gradient_bytes
    return 2.0 * replicas, 2.0 * replicas * gradient_bytes


def exchange_seconds(topology: Topology, replicas: int, gradient_bytes: float, link: LinkModel) -> float:
    """Seconds of one exchange, none of it hidden behind compute."""
    messages, volume = exchange_terms(topology, replicas, gradient_bytes)
    return messages * link.alpha_seconds + volume * link.beta_seconds_per_byte


class Compute(Frozen):
    """Seconds of one replica's step without communication: `fixed_seconds` + `image_seconds` x its batch."""

    fixed_seconds: float
    image_seconds: float

    def step_seconds(self, batch_size: float) -> float:
        return self.fixed_seconds + self.image_seconds * batch_size


def fit_compute(points: Sequence[tuple[float, float]]) -> Compute | None:
    """Fit (batch size, seconds of a step) of serial runs on one replica's resources. Both terms are at least zero."""
    if not points:
        return None
    batch, seconds = np.array(points).T
    if len(set(batch.tolist())) == 1:
        return Compute(fixed_seconds=0.0, image_seconds=float(seconds.mean() / batch[0]))
    # Relative errors count, not the largest batch's seconds.
    coefficients = _least_squares(np.stack([np.ones_like(batch), batch], 1) / seconds[:, None], np.ones_like(seconds))
    return Compute(fixed_seconds=coefficients[0], image_seconds=coefficients[1])


def fit_link(topology: Topology, gradient_bytes: float, points: Sequence[tuple[int, float]]) -> LinkModel:
    """Fit alpha and beta to the exchanges measured on this machine.

    One number of replicas cannot separate alpha and beta. Then all of the time counts as bandwidth.

    Args:
        points: (replicas, seconds of a step beyond compute). Noise can make them negative. None: an exchange costs nothing.
    """
    terms = np.array([exchange_terms(topology, replicas, gradient_bytes) for replicas, _ in points]).reshape(-1, 2)
    if len({replicas for replicas, _ in points}) == 1:
        beta = max(float(np.mean([seconds for _, seconds in points])) / terms[0, 1], 0.0)
        return LinkModel(name="this machine", alpha_seconds=0.0, beta_seconds_per_byte=beta)
    scale = terms.max(axis=0, initial=1.0)
    coefficients = _least_squares(terms / scale, np.array([seconds for _, seconds in points]))
    return LinkModel(
        name="this machine", alpha_seconds=coefficients[0] / scale[0], beta_seconds_per_byte=coefficients[1] / scale[1]
    )


def _least_squares(matrix: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Solve a least-squares problem for two coefficients, neither below zero."""
    if not len(values):
        return 0.0, 0.0
    from scipy import optimize  # here: it takes a quarter of a second to import, and most commands fit nothing

    first, second = optimize.nnls(matrix, values)[0].tolist()
    return first, second
