"""Prints the still fallback of <roofline>; attributes are a JSON object on standard input."""

from still import main

main("roofline")
