"""Makes the shared helpers of `tests/support` importable as `support.*`. Imports nothing heavy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
