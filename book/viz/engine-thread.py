"""Prints the still fallback of <engine-thread>; attributes are a JSON object on standard input."""

from still import main

main("engine-thread")
