"""The plan file: the only thing that the compiler and the runtime both know.

`layout` defines every record, enum and limit once; everything else here reads, writes, checks or shows them.
"""
