"""Prints the still fallback of <sampler>; attributes are a JSON object on standard input."""

from still import main

main("sampler")
