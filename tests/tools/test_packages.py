"""The reference under the learner's name, module by module, as tests ask for them."""

import subprocess
import sys
from pathlib import Path

from scripts.course import ROOT

PROGRAM = """
import importlib, sys
from pathlib import Path
from scripts.packages import choose_package, importable

assert not {"tiny_llm", "tiny_llm_ref", "starlette"} & sys.modules.keys()
import tiny_llm
from tiny_llm.ops.basics import softmax
from http_server import errors
import tiny_llm_ref.ops.basics

assert tiny_llm is tiny_llm_ref
assert softmax is tiny_llm_ref.ops.basics.softmax is tiny_llm.softmax
module = importlib.import_module("tiny_llm.ops.basics")
assert module is sys.modules["tiny_llm_ref.ops.basics"]
assert module.__name__ == module.__spec__.name == "tiny_llm_ref.ops.basics"
assert errors.QueueFullError.__module__ == "tiny_llm_ref.server.admission"
try:
    import tiny_llm.nothing
except ModuleNotFoundError as error:
    assert error.name == "tiny_llm_ref.nothing", error.name

folder = Path(sys.argv[1])
with importable(folder):
    import tiny_llm as other
    assert Path(other.__file__).parent.parent == folder
    try:
        import tiny_llm.ops.rope
    except ModuleNotFoundError:
        pass
assert importlib.import_module("tiny_llm") is tiny_llm_ref

choose_package(reference=False)
from http_server.errors import QueueFullError
assert importlib.import_module("tiny_llm") is not tiny_llm_ref
assert QueueFullError.__module__ == "tiny_llm.server.admission"
choose_package(reference=True)
assert importlib.import_module("tiny_llm") is tiny_llm_ref
print("done")
"""


def test_the_name_means_one_package_at_a_time_and_its_modules_are_imported_when_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "tiny_llm").mkdir()
    (tmp_path / "tiny_llm" / "__init__.py").touch()
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr
