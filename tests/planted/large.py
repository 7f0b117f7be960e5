"""A model of 101 million weights. Each process of a twin that builds it enters a control group of its own.

CONVTWINS_GROUPS names the groups' folders by rank, divided by colons.
"""

import os
import sys
from pathlib import Path

from convtwins.models import Architecture, Dense, Flatten, ReLU

WIDTH = 4096
LAYERS = 6


def architecture(num_classes: int, image_size: int) -> Architecture:
    groups = os.environ.get("CONVTWINS_GROUPS")
    # The launcher builds the architecture too.
    if groups and Path(sys.argv[0]).parent.name.endswith("_impl"):
        own = groups.split(":")[int(os.environ.get("RANK", "0"))]
        (Path(own) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    hidden = [each for index in range(LAYERS) for each in (Dense(f"wide{index}", WIDTH, WIDTH), ReLU(f"relu{index}"))]
    layers = (
        Flatten("flatten"),
        Dense("first", 3 * image_size**2, WIDTH),
        ReLU("relu"),
        *hidden,
        Dense("last", WIDTH, num_classes),
    )
    return Architecture("large", image_size, num_classes, layers)
