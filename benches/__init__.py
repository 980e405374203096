"""Benchmarks: each prints machine, versions, medians and spread."""
