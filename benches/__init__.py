"""Benchmarks: each prints machine, versions, medians and spread."""

import scripts  # noqa: F401  loads a fast BLAS, which must come before MLX
