"""A scan that kills the worker that it runs in, over one stretch of files, as often as is planned."""

import json
import os
import signal
from pathlib import Path

from common.data.preprocessing.scan import file_sums
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded


def plan(encoded: Encoded, stretch: Encoded, deaths: int) -> Path:
    """Let whoever scans this stretch of the files die; gives the folder that gets a file for each death."""
    folder = encoded.path.with_suffix(".deaths")
    folder.mkdir()
    encoded.path.with_suffix(".plan").write_text(json.dumps([int(stretch.offsets[0]), deaths]))
    return folder


def sums(encoded: Encoded, image_size: int) -> Sums:
    offset, deaths = json.loads(encoded.path.with_suffix(".plan").read_text())
    folder = encoded.path.with_suffix(".deaths")
    died = len(list(folder.iterdir()))
    if encoded.offsets[0] == offset and died < deaths:
        (folder / str(died)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file_sums(encoded, image_size)
