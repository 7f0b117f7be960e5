"""Labelled images, from the digits that scikit-learn ships to a tree of files inside an archive: one manifest, one decode."""

from common.data.dataset import DataRefused, Dataset, Files, FileSplit, Split
from common.data.decoding.encoded import Encoded
from common.data.sources.lookup import NAMES, load, load_files, load_manifest
from common.data.sources.manifest import Manifest

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
