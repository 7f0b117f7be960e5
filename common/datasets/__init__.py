"""Labelled images, from the digits that scikit-learn ships to a tree of files inside an archive: one manifest, one decode."""

from common.datasets.dataset import DataRefused, Dataset, Split
from common.datasets.sources import NAMES, load

__all__ = ["NAMES", "DataRefused", "Dataset", "Split", "load"]
