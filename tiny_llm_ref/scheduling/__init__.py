"""Which tokens a step computes: sequences, blocks, prefixes, policies. No model, no clock, no I/O."""
