"""The former name of `common.models.architectures`, for users' own models. It works until version 0.3."""

import sys
import warnings

from common.models import architectures

warnings.warn(
    "common.architectures is called common.models.architectures now. The former name works until version 0.3.",
    FutureWarning,
    stacklevel=2,
)
sys.modules[__name__] = architectures
