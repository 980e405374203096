"""Prints the still fallback of <block-pool>; attributes are a JSON object on standard input."""

from still import main

main("block-pool")
