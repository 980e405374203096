"""What tests have in common: checks, fakes, oracles, cases."""
