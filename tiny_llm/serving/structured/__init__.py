"""Answers that keep to a grammar: what may come next, and what must."""
