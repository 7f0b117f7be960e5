"""Labelled images from any source: the digits of scikit-learn, downloads, image folders, archives, synthetic leaves."""

# pyright: reportUnusedImport=false
from common.data.dataset import DataRefused, Dataset, DatasetDescription, DatasetSplit
from common.data.decoding.encoded import Encoded
from common.data.sources.locating import NAMES
from common.data.sources.lookup import architecture_of, describe, load, load_files, load_manifest
from common.data.sources.manifest import Manifest
