"""Prints the still fallback of <scheduler-timeline>; attributes are a JSON object on standard input."""

from still import main

main("scheduler-timeline")
