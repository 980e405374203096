"""What keys and values depend on besides the tokens."""

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def kv_identity(checkpoint: Path, *parts: object) -> str:
    """A name for the weights, the code that computes with them, and the format of blocks.

    Weights are known by the names, sizes and times of their files, since reading them all would take long.

    Args:
        checkpoint: its folder.
        parts: whatever else blocks differ by.
    """
    digest = sha256(f"{version('mlx')} {parts}".encode())
    for path in sorted(checkpoint.glob("*.safetensors")):
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns} ".encode())
    code = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in [checkpoint / "config.json", *sorted(code)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
