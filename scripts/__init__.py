"""The course's commands and tools, each run as `pdm run NAME` or `python -m scripts.NAME`."""
