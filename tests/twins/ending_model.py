"""A user's own model whose builders end the process as if all were well."""

import sys

from tests.twins.own_model import architecture as architecture


def build_pytorch(*_: object) -> None:
    sys.exit(0)


build_tensorflow = build_pytorch
