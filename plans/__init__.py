"""The plan file: the only thing that the compiler and the runtime both know.

`layout` defines every record, enum and limit once; everything else here reads, writes, checks or shows them.
"""

from .diff import Difference, diff
from .reader import PlanError, PlanFile, open_plan
from .records import PlanTables, Selftest
from .sizing import Sizing, concurrency_table, format_bytes, sizing
from .verify import verify
from .writer import PlanWriteError, PlanWriter

__all__ = [
    "Difference",
    "PlanError",
    "PlanFile",
    "PlanTables",
    "PlanWriteError",
    "PlanWriter",
    "Selftest",
    "Sizing",
    "concurrency_table",
    "diff",
    "format_bytes",
    "open_plan",
    "sizing",
    "verify",
]
