"""Prints the still fallback of <attention-mask>; attributes are a JSON object on standard input."""

from still import main

main("attention-mask")
