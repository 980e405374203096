"""Float32 in full, for commands whose promises depend on it."""

import os


def use_full_float32() -> None:
    """Keep MLX from multiplying float32 in TF32, in this process and in those it starts.

    TF32 keeps 10 bits of each factor's fraction. MLX uses it by default on GPUs that have it, for products of
    several rows and not of one, so a request can get other token ids in another batch. MLX reads the variable
    at its first product in float32 on a GPU and never again: call this before.
    """
    os.environ["MLX_ENABLE_TF32"] = "0"
