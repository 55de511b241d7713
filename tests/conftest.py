"""Makes the shared helpers of `tests/support` importable as `support.*`. Imports nothing heavy."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts a job in the background has it ignore Ctrl-C, and every child inherits that: tests that
# interrupt a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
