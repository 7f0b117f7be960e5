"""The former address of `common.models.architectures`. Models of users import it."""

import sys
import warnings

from common.models import architectures

warnings.warn(
    "common.architectures is now common.models.architectures. Change the import: the old address will go.",
    FutureWarning,  # a DeprecationWarning would be shown to nobody
    stacklevel=2,
)
sys.modules[__name__] = architectures
