"""Grammars: which tokens may come next."""
