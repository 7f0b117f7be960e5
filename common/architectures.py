"""A former address of `convtwins.models`. Models of users import it."""

import sys
import warnings

from common.models import architectures

warnings.warn(
    "common.architectures is a former address. Import from convtwins.models instead: the old address will go.",
    FutureWarning,  # a DeprecationWarning would be shown to nobody
    stacklevel=2,
)
sys.modules[__name__] = architectures
