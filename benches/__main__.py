"""`pdm run bench`: with --mine, `tiny_llm_ref` means the learner's package in it and in its processes."""

import os
import sys

from scripts.errors import usage_errors
from scripts.packages import MINE, OF_LEARNER, use_learners

OF_BOTH = "race"  # sets the learner's package beside the reference, and finds both by itself

if __name__ == "__main__" and MINE in sys.argv and OF_BOTH not in sys.argv:
    os.environ[OF_LEARNER] = "1"
    with usage_errors():
        use_learners()

from benches.commands import app  # noqa: E402  only now, since its modules take their names from the package

if __name__ == "__main__":
    with usage_errors():
        app(prog_name="pdm run bench")
