"""Prints the still fallback of <kv-cache>; attributes are a JSON object on standard input."""

from still import main

main("kv-cache")
