"""Benchmarks: each prints machine, versions, medians and spread.

Their modules measure `tiny_llm_ref`, which is the learner's package where the environment says so.
"""

import os

import scripts  # noqa: F401  loads a fast BLAS, which must come before MLX
from scripts.packages import OF_LEARNER, use_learners

if OF_LEARNER in os.environ:
    use_learners()
