"""Fixed ownership: the training images of each process, and its positions in each batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.models.sharding import shard
from common.spec import Dask

Ids = npt.NDArray[np.int64]


def partition(settings: Dask, owners: int, labels: Ids, generator: np.random.Generator) -> list[Ids]:
    """Divide all examples over owners at random. Each belongs to one.

    balanced: equal numbers, which differ by one at most.
    speed: numbers in proportion to the owners' speeds.
    class_skew: of each class, parts that are drawn from a symmetric Dirichlet distribution (Hsu, Qi & Brown 2019, Measuring
        the effects of non-identical data distribution for federated visual classification).

    Args:
        settings: the spec's settings of Dask.
        owners: number of owners.
        labels: int64 [N], class ids. Only class_skew looks at them.
        generator: consumed.

    Returns:
        For each owner int64 ids, ascending.
    """
    order = generator.permutation(len(labels))
    if settings.partition == "class_skew":
        parts_by_owner: list[list[Ids]] = [[] for _ in range(owners)]
        for label in np.unique(labels):
            members = order[labels[order] == label]
            shares = generator.dirichlet(np.full(owners, settings.skew))
            for parts, part in zip(parts_by_owner, np.split(members, _cuts(shares, len(members))), strict=True):
                parts.append(part)
        return [np.sort(np.concatenate(parts)).astype(np.int64) for parts in parts_by_owner]
    if settings.partition == "speed":
        cuts = _cuts(np.array(settings.speeds) / sum(settings.speeds), len(order))
    else:
        cuts = np.array([shard(len(order), owners, owner)[1] for owner in range(owners - 1)], np.int64)
    return [np.sort(part).astype(np.int64) for part in np.split(order, cuts)]


def owners_of_positions(sizes: list[int], batch_size: int) -> npt.NDArray[np.int64]:
    """Return the owner of each position of an epoch's order.

    Each owner's examples are spread evenly over the epoch. In each batch, owner 0's positions come first, then owner 1's.

    Args:
        sizes: number of examples of each owner.
        batch_size: size of the global batch. The last one may be smaller.

    Returns:
        int64 [N], with each owner as often as it has examples.
    """
    owners = np.repeat(np.arange(len(sizes)), sizes)
    fractions = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes if size])
    spread = owners[np.lexsort((owners, fractions))]
    return spread[np.lexsort((spread, np.arange(len(spread)) // batch_size))]


def _cuts(shares: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    return np.round(np.cumsum(shares)[:-1] * count).astype(np.int64)
