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
from accelerated import accelerate
from http_server import errors
import tiny_llm_ref.ops.basics

assert tiny_llm is tiny_llm_ref
assert softmax is tiny_llm_ref.ops.basics.softmax is tiny_llm.softmax
module = importlib.import_module("tiny_llm.ops.basics")
assert module is sys.modules["tiny_llm_ref.ops.basics"]
assert module.__name__ == module.__spec__.name == "tiny_llm_ref.ops.basics"
assert errors.QueueFullError.__module__ == "tiny_llm_ref.server.admission"
assert accelerate.sample_batch.__module__ == "tiny_llm_ref.engine.batch_sampler"
assert tiny_llm.load.__module__ == "accelerated.pretrained"
assert tiny_llm.load.__globals__["Qwen3Model"] is tiny_llm.Qwen3Model
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
import tiny_llm as mine
from accelerated.accelerate import sample_batch
assert sample_batch.__module__ == "tiny_llm.engine.batch_sampler"
assert mine.load.__globals__["Qwen3Model"] is mine.Qwen3Model is not tiny_llm_ref.Qwen3Model
mine_load = mine.load
try:
    from tiny_llm_ref import load
except ImportError as error:
    assert str(error).startswith("load makes another package's models here: "), error
else:
    raise AssertionError("the reference loads models of the learner's package")
choose_package(reference=True)
assert importlib.import_module("tiny_llm") is tiny_llm_ref
assert tiny_llm_ref.load is not mine_load
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
