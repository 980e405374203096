"""Draft tokens: where they come from, and how a step verifies them."""
