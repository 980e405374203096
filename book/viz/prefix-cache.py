"""Prints the still fallback of <prefix-cache>; attributes are a JSON object on standard input."""

from still import main

main("prefix-cache")
