"""Week 4, day 1: quantized KV blocks."""
