"""The reference under the learner's name, module by module, as tests ask for them."""

import subprocess
import sys

from scripts.course import ROOT

PROGRAM = """
import importlib, sys, types
from scripts.packages import use_reference

use_reference()
assert "starlette" not in sys.modules and "tiny_llm_ref.http_server.app" not in sys.modules
import tiny_llm
from tiny_llm.ops.basics import softmax
from tiny_llm.http_server import app
import tiny_llm_ref.ops.basics
import tiny_llm_ref.http_server.app

assert tiny_llm is tiny_llm_ref
assert app is tiny_llm_ref.http_server.app
assert softmax is tiny_llm_ref.ops.basics.softmax is tiny_llm.softmax
for name in ("ops.basics", "http_server.app"):
    module = importlib.import_module(f"tiny_llm.{name}")
    assert module is sys.modules[f"tiny_llm_ref.{name}"]
    assert module.__name__ == module.__spec__.name == f"tiny_llm_ref.{name}"
try:
    import tiny_llm.nothing
except ModuleNotFoundError as error:
    assert error.name == "tiny_llm_ref.nothing", error.name
sys.modules["tiny_llm"] = types.ModuleType("tiny_llm")
try:
    import tiny_llm.ops.rope
except ModuleNotFoundError:  # the name means another package, which has no modules
    print("done")
"""


def test_a_module_is_the_same_under_both_names_and_imported_when_asked_for() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr
