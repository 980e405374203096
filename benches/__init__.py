"""Benchmarks: each prints machine, versions, medians and spread.

Their modules measure `tiny_llm`: the reference, or the learner's package where the environment says so.
"""

import scripts  # noqa: F401  loads a fast BLAS, which must come before MLX
