"""`pdm run bench`: with --mine, `tiny_llm` means the learner's package in it and in its processes."""

import os
import sys

from scripts.errors import usage_errors
from scripts.packages import MINE, OF_LEARNER, choose_package

if __name__ == "__main__" and MINE in sys.argv:
    os.environ[OF_LEARNER] = "1"
    with usage_errors():
        choose_package(reference=False)

from benches.commands import app

if __name__ == "__main__":
    with usage_errors():
        app(prog_name="pdm run bench")
