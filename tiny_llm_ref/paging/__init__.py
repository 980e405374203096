"""Keys and values in blocks: the pools, and one ragged batch per step."""
