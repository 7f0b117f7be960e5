"""Labelled images, from the digits that scikit-learn ships to a tree of files inside an archive: one manifest, one decode."""

from common.datasets.dataset import DataRefused, Dataset, Files, FileSplit, Split
from common.datasets.encoded import Encoded
from common.datasets.manifest import Manifest
from common.datasets.sources import NAMES, load, load_files, load_manifest

__all__ = [
    "NAMES",
    "DataRefused",
    "Dataset",
    "Encoded",
    "FileSplit",
    "Files",
    "Manifest",
    "Split",
    "load",
    "load_files",
    "load_manifest",
]
