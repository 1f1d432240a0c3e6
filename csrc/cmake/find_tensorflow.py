"""Print TensorFlow's folder and version, separated by ';', without importing it: an import takes seconds."""

import importlib.util
import sys
from importlib.metadata import distributions
from pathlib import Path

spec = importlib.util.find_spec("tensorflow")
if spec is None or spec.origin is None:
    sys.exit(f"no module named tensorflow in {sys.executable}")
folder = Path(spec.origin).parent
# By the folder's owner, not by the wheel's name: tensorflow, tensorflow-cpu, tf-nightly, … all hold this folder.
versions = [
    d.version
    for d in distributions(path=[str(folder.parent)])
    if "tensorflow" in (d.read_text("top_level.txt") or "").split()
]
if not versions:
    sys.exit(f"no installed package says that it holds {folder}")
sys.stdout.write(f"{folder};{versions[0]}")
