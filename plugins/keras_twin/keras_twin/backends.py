"""The backend of this process. Nothing else that the backends share asks for its name."""

from __future__ import annotations

import os

match os.environ["KERAS_BACKEND"]:
    case "torch":
        from keras_twin.on_torch import backend as backend
    case "tensorflow":
        from keras_twin.on_tensorflow import backend as backend
    case "jax":
        from keras_twin.on_jax import backend as backend
    case name:
        raise ImportError(f"Keras trains on torch, tensorflow or jax. Received: KERAS_BACKEND={name}.")
