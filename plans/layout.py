"""Every record, enum and limit of the plan file, defined once.

`generate.py` turns this module into `generated/plan_layout.h` (C++) and `FORMAT.md`; the Python reader,
writer and verifier use it directly. All integers are little-endian; every record has natural alignment and
explicit padding, so that a C++ struct and a `struct` format describe the same bytes. Nothing here depends on
anything.
"""

from __future__ import annotations

import builtins
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAGIC = b"INGOTPLN"
FORMAT_VERSION = 1
PAGE_BYTES = 4096  # header size; alignment of every section but a large WEIGHTS
HUGE_PAGE_BYTES = 2 << 20  # alignment of WEIGHTS when it holds at least this many bytes
CHUNK_BYTES = 4 << 20  # one sha256 per this many bytes, from the end of the header to the start of HASHES
HASH_BYTES = 32
SECTION_TABLE_OFFSET = 1024  # within the header page
NONE_INDEX = 0xFFFFFFFF  # "no tensor", "no command"
GRANULE_TOKENS = 128
TENSOR_ALIGNMENT = 64  # of every tensor's offset, in bytes
PANEL_OUTPUTS = 16  # output channels side by side in a weight panel
I8_GROUP = 32  # weights along k that share one float16 scale
I8_BLOCK = 64  # k of one block of an i8 panel: two groups
I8_BLOCK_BYTES = 1088  # 2 x 16 float16 scales, then 16 lines of 64 bytes
TOP_LOGPROBS_MAX = 20
LOGIT_BIAS_MAX = 64
STOP_TOKENS_MAX = 16
EVENT_RING_ENTRIES = 64
ENGINE_BYTES = 65536  # STATE bytes reserved for the engine's own fixed structures
COMMAND_TENSORS = 14


class Limit(IntEnum):
    """Counts are compared with these before any loop or allocation."""

    SECTIONS = 32
    REGIONS = 8
    TENSORS = 1 << 20
    PROGRAMS = 64
    COMMANDS = 1 << 20
    KERNELS = 64
    STRING_BYTES = 16 << 20
    META_BYTES = 64 << 20
    TOKENIZER_BYTES = 256 << 20
    VOCABULARY = 1 << 20
    LAYERS = 1024
    HIDDEN = 1 << 17
    HEADS = 1024
    HEAD_SIZE = 512
    CONTEXT = 1 << 24
    ROWS = 4096
    HEAD_ROWS = 256
    REQUESTS = 4096
    EOS_TOKENS = 8
    SELFTEST_TOKENS = 4096
    GRANULES = 1 << 29  # REQUESTS leases of CONTEXT tokens
    NAME_BYTES = 255
    PROGRAM_TENSORS = 8192  # arena tensors of one program: bounds the overlap check
    BYTES_LOG2 = 48  # no size in a plan exceeds 1 << 48 bytes


class Target(IntEnum):
    CPU = 1
    SM90A = 2
    TENSORRT = 3


class Section(IntEnum):
    """Section kinds; sections lie in the file in ascending kind order."""

    REGIONS = 1
    TENSORS = 2
    PROGRAMS = 3
    COMMANDS = 4
    KERNELS = 5
    STRINGS = 6
    META = 7
    DRIFT = 8
    TOKENIZER = 9
    TEMPLATE = 10
    SELFTEST = 11
    SCALES = 12
    WEIGHTS = 13
    HASHES = 16


OPTIONAL_SECTIONS = frozenset({Section.DRIFT, Section.TOKENIZER, Section.TEMPLATE, Section.SELFTEST})


class Region(IntEnum):
    """One contiguous reservation each; a plan has exactly one record of each, in this order."""

    WEIGHTS = 1
    SCALES = 2
    STATE = 3
    ARENA = 4
    KV = 5
    IO = 6


class Unit(IntEnum):
    """What a tensor exists once per. A region holds its FIXED part, then its granules, then its requests."""

    FIXED = 0
    GRANULE = 1
    REQUEST = 2


class Dtype(IntEnum):
    U8 = 1
    I8 = 2
    U16 = 3
    U32 = 4
    F16 = 5
    BF16 = 6
    F32 = 7
    E4M3 = 8
    E5M2 = 9


DTYPE_BYTES = {
    Dtype.U8: 1, Dtype.I8: 1, Dtype.U16: 2, Dtype.U32: 4, Dtype.F16: 2,
    Dtype.BF16: 2, Dtype.F32: 4, Dtype.E4M3: 1, Dtype.E5M2: 1,
}  # fmt: skip


class Layout(IntEnum):
    """How a tensor's elements lie. See `weight_bytes` for the panel formulas."""

    ROWS = 0  # dense row-major over dims
    PANELS = 1  # (outputs, k) in panels of 16 output channels
    PANELS_PAIRED = 2  # (2 * outputs, k): panel 2j holds gate outputs 16j.., panel 2j + 1 up outputs 16j..


class Family(IntEnum):
    BODY = 1  # rows -> hidden states (and KV)
    HEAD = 2  # hidden states of chosen rows -> logits -> tokens


class Kernel(IntEnum):
    EMBED_I8 = 1
    EMBED_E4M3 = 2
    EMBED_BF16 = 3
    ROPE_TABLE = 4
    LINEAR_I8 = 5
    LINEAR_E4M3 = 6
    LINEAR_BF16 = 7
    ATTENTION_I8 = 8
    ATTENTION_E4M3 = 9
    ATTENTION_E5M2 = 10
    ATTENTION_BF16 = 11
    SAMPLE = 12


class Flag(IntFlag):
    """Command flags; which a kernel takes is in `KERNELS`."""

    NORM = 1  # linear: rms_norm the input row first
    BIAS = 2  # linear: add a bias
    RESIDUAL = 4  # linear: add the residual stream
    SILU_MUL = 8  # linear: out = silu(gate) * up, weight PANELS_PAIRED
    GATHER = 16  # linear: input row r is x[row_index[r]]
    ROPE = 32  # attention: rotate q and k
    QK_NORM = 64  # attention: rms_norm q and k per head


class Reason(IntEnum):
    """Why `verify` refused a plan. Python and C++ give the same reason and the same index."""

    OK = 0
    TOO_SHORT = 1
    BAD_MAGIC = 2
    BAD_VERSION = 3
    BAD_HEADER_HASH = 4
    BAD_FILE_SIZE = 5
    BAD_HEADER_FIELD = 6
    BAD_HEADER_PADDING = 7
    BAD_SECTION_KIND = 8
    BAD_SECTION_OFFSET = 9
    BAD_SECTION_BOUNDS = 10
    BAD_SECTION_RECORDS = 11
    BAD_SECTION_PADDING = 12
    MISSING_SECTION = 13
    BAD_ROOT_HASH = 14
    BAD_CHUNK_HASH = 15
    BAD_FILE_PADDING = 16
    BAD_STRINGS = 17
    BAD_REGION = 18
    BAD_TENSOR_NAME = 19
    BAD_TENSOR_FIELD = 20
    BAD_TENSOR_BYTES = 21
    BAD_TENSOR_BOUNDS = 22
    BAD_TENSOR_ORDER = 23
    BAD_KERNEL = 24
    BAD_PROGRAM = 25
    BAD_ARENA_TENSOR = 26
    ARENA_OVERLAP = 27
    BAD_COMMAND_FIELD = 28
    BAD_COMMAND_TENSOR = 29
    BAD_COMMAND_LIFETIME = 30
    BAD_COMMAND_SHAPE = 31
    BAD_STATE_TENSOR = 32
    BAD_SELFTEST = 33
    BAD_TEXT = 34


REASON_TEXT: dict[Reason, str] = {
    Reason.OK: "the plan is sound",
    Reason.TOO_SHORT: "the file is shorter than a plan header (4096 bytes)",
    Reason.BAD_MAGIC: "the file does not begin with the plan magic: it is not a plan",
    Reason.BAD_VERSION: "the plan has another format version: rebuild it with this release's build-engine",
    Reason.BAD_HEADER_HASH: "the header does not match its hash: the file is damaged",
    Reason.BAD_FILE_SIZE: "the file size differs from the header's: the file is truncated or has a tail",
    Reason.BAD_HEADER_FIELD: "a header field is outside its limit",
    Reason.BAD_HEADER_PADDING: "header padding is not zero",
    Reason.BAD_SECTION_KIND: "section kinds are unknown or not strictly ascending",
    Reason.BAD_SECTION_OFFSET: "a section does not begin at the next aligned offset",
    Reason.BAD_SECTION_BOUNDS: "a section reaches beyond the file",
    Reason.BAD_SECTION_RECORDS: "a section's record size or count is wrong or over its limit",
    Reason.BAD_SECTION_PADDING: "section table padding is not zero",
    Reason.MISSING_SECTION: "a required section is missing",
    Reason.BAD_ROOT_HASH: "the hash table does not match the root hash: the file is damaged",
    Reason.BAD_CHUNK_HASH: "a 4 MiB chunk does not match its hash: the file is damaged",
    Reason.BAD_FILE_PADDING: "padding between sections is not zero",
    Reason.BAD_STRINGS: "the string table is not valid",
    Reason.BAD_REGION: "a region record is not valid",
    Reason.BAD_TENSOR_NAME: "a tensor's name is outside the string table",
    Reason.BAD_TENSOR_FIELD: "a tensor's region, unit, dtype, layout, rank or dimensions are not valid",
    Reason.BAD_TENSOR_BYTES: "a tensor's size does not follow from its dimensions",
    Reason.BAD_TENSOR_BOUNDS: "a tensor reaches beyond its region or is not aligned",
    Reason.BAD_TENSOR_ORDER: "tensors are not sorted by region, unit and offset, or overlap",
    Reason.BAD_KERNEL: "a kernel record is unknown, unsorted or of another version",
    Reason.BAD_PROGRAM: "a program record is not valid",
    Reason.BAD_ARENA_TENSOR: "an arena tensor has no valid lifetime in its program",
    Reason.ARENA_OVERLAP: "two arena tensors that live at the same time share bytes",
    Reason.BAD_COMMAND_FIELD: "a command's kernel, flags, layer or padding are not valid",
    Reason.BAD_COMMAND_TENSOR: "a command's operand is missing, not allowed, or of the wrong kind",
    Reason.BAD_COMMAND_LIFETIME: "a command uses an arena tensor outside its lifetime or program",
    Reason.BAD_COMMAND_SHAPE: "the shapes of a command's operands do not agree",
    Reason.BAD_STATE_TENSOR: "a table that the runtime needs is missing or has the wrong shape",
    Reason.BAD_SELFTEST: "the self-test section is not valid",
    Reason.BAD_TEXT: "a text section is not UTF-8",
}


# --- records ------------------------------------------------------------------------------------------------

_CODES = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "f32": "f"}
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8, "f32": 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `count` 0 is a scalar, otherwise an array of that many (u8 arrays become `bytes`)."""

    name: str
    type: str
    doc: str
    count: int = 0

    @property
    def bytes(self) -> int:
        return _SIZES[self.type] * max(self.count, 1)


@dataclass(frozen=True, slots=True)
class Record:
    """A fixed-width record: name, doc, size in bytes, and its fields in file order."""

    name: str
    doc: str
    bytes: int
    fields: tuple[Field, ...]

    def offsets(self) -> dict[str, int]:
        offsets, at = {}, 0
        for field in self.fields:
            assert at % _SIZES[field.type] == 0, f"{self.name}.{field.name} is not aligned"
            offsets[field.name] = at
            at += field.bytes
        assert at == self.bytes, f"{self.name}: fields take {at} bytes, declared {self.bytes}"
        return offsets

    def pack(self, **values: object) -> builtins.bytes:
        """The record's bytes; fields that are not given are zero. Raises KeyError for an unknown field."""
        names = {field.name for field in self.fields}
        if unknown := set(values) - names:
            raise KeyError(f"{self.name} has no field {sorted(unknown)[0]}")
        parts = []
        for field in self.fields:
            value = values.get(field.name)
            if field.count == 0:
                parts.append(struct.pack("<" + _CODES[field.type], value if value is not None else 0))
            elif field.type == "u8":
                raw = bytes(value) if value is not None else b""  # type: ignore[call-overload]
                assert len(raw) <= field.count, f"{self.name}.{field.name} is too long"
                parts.append(raw.ljust(field.count, b"\0"))
            else:
                items = list(value) if value is not None else []  # type: ignore[call-overload]
                assert len(items) <= field.count, f"{self.name}.{field.name} is too long"
                items += [0] * (field.count - len(items))
                parts.append(struct.pack(f"<{field.count}{_CODES[field.type]}", *items))
        return b"".join(parts)

    def unpack(self, raw: builtins.bytes | memoryview) -> dict[str, object]:
        """Field name -> int, float, bytes (u8 array) or tuple (other arrays)."""
        values: dict[str, object] = {}
        at = 0
        for field in self.fields:
            if field.count == 0:
                values[field.name] = struct.unpack_from("<" + _CODES[field.type], raw, at)[0]
            elif field.type == "u8":
                values[field.name] = bytes(raw[at : at + field.count])
            else:
                values[field.name] = struct.unpack_from(f"<{field.count}{_CODES[field.type]}", raw, at)
            at += field.bytes
        return values


def _f(name: str, type_: str, doc: str, count: int = 0) -> Field:
    return Field(name, type_, doc, count)


HEADER = Record("Header", "First bytes of the file; the section table follows at offset 1024.", 320, (
    _f("magic", "u8", "INGOTPLN", 8),
    _f("format_version", "u32", "exactly FORMAT_VERSION"),
    _f("header_bytes", "u32", "exactly PAGE_BYTES"),
    _f("file_bytes", "u64", "exact size of the file"),
    _f("target", "u32", "Target"),
    _f("section_count", "u32", "entries used in the section table"),
    _f("header_hash", "u8", "sha256 of the header page with this field zero: the plan's identity", 32),
    _f("root_hash", "u8", "sha256 of the HASHES section", 32),
    _f("vocabulary", "u32", "token ids are below this"),
    _f("layers", "u32", "decoder layers"),
    _f("hidden", "u32", "width of the residual stream"),
    _f("query_heads", "u32", "attention query heads"),
    _f("kv_heads", "u32", "attention key/value heads; divides query_heads"),
    _f("head_size", "u32", "elements of one head, a multiple of 8"),
    _f("rotary_pairs", "u32", "pairs of a head that rotate; 0 without rope"),
    _f("context", "u32", "most tokens (prompt + generated) of one request: the capacity of a lease"),
    _f("rows_max", "u32", "rows of the largest body program"),
    _f("head_rows_max", "u32", "rows of the largest head program"),
    _f("requests_max", "u32", "ceiling on concurrent requests chosen at open"),
    _f("requests_default", "u32", "concurrent requests when none are chosen"),
    _f("granules_max", "u32", "ceiling on granules chosen at open"),
    _f("granules_default", "u32", "granules when none are chosen"),
    _f("default_max_tokens", "u32", "tokens generated when a request does not say, capped by the context"),
    _f("weights_dtype", "u32", "Dtype of most weights"),
    _f("kv_dtype", "u32", "Dtype of the KV granules"),
    _f("activation_dtype", "u32", "Dtype that linear inputs are rounded to"),
    _f("bos_token", "u32", "NONE_INDEX when the model has none"),
    _f("eos_count", "u32", "entries used in eos_tokens"),
    _f("eos_tokens", "u32", "generation ends when one of these is sampled", 8),
    _f("padding", "u8", "zero", 112),
))  # fmt: skip

SECTION = Record("SectionRecord", "One entry of the section table.", 32, (
    _f("kind", "u32", "Section"),
    _f("record_bytes", "u32", "size of a record, 1 for bytes"),
    _f("offset", "u64", "from the start of the file"),
    _f("bytes", "u64", "without padding"),
    _f("count", "u64", "records; bytes = record_bytes * count"),
))  # fmt: skip

REGION = Record("RegionRecord", "A contiguous reservation made once at create.", 64, (
    _f("kind", "u32", "Region"),
    _f("section", "u32", "Section that fills it at create (its bytes equal bytes_fixed), or 0"),
    _f("bytes_fixed", "u64", "bytes that do not depend on what is chosen at open"),
    _f("bytes_per_granule", "u64", "stride of one granule, multiple of 64"),
    _f("bytes_per_request", "u64", "stride of one request slot, multiple of 64"),
    _f("alignment", "u64", "of the base address: PAGE_BYTES or HUGE_PAGE_BYTES"),
    _f("padding", "u8", "zero", 24),
))  # fmt: skip

TENSOR = Record("TensorRecord", "A named range of a region.", 64, (
    _f("name_offset", "u32", "into STRINGS"),
    _f("name_bytes", "u32", "length of the name"),
    _f("region", "u8", "Region"),
    _f("unit", "u8", "Unit"),
    _f("dtype", "u8", "Dtype"),
    _f("layout", "u8", "Layout"),
    _f("rank", "u32", "used dims, 1 to 4"),
    _f("dims", "u32", "shape, outermost first; unused entries are 0", 4),
    _f("offset", "u64", "from the start of the region's part for `unit`, multiple of 64"),
    _f("bytes", "u64", "from dims, dtype and layout, without padding"),
    _f("first_command", "u32", "ARENA: first command that touches it (absolute index); else NONE_INDEX"),
    _f("last_command", "u32", "ARENA: last command that touches it, inclusive; else NONE_INDEX"),
    _f("padding", "u8", "zero", 8),
))  # fmt: skip

PROGRAM = Record("ProgramRecord", "A command list for one fixed number of rows.", 64, (
    _f("family", "u32", "Family"),
    _f("rows", "u32", "the bucket"),
    _f("command_begin", "u32", "first command"),
    _f("command_count", "u32", "commands"),
    _f("tensor_begin", "u32", "first of this program's ARENA tensors"),
    _f("tensor_count", "u32", "number of this program's ARENA tensors"),
    _f("arena_bytes", "u64", "end of the highest ARENA tensor"),
    _f("arena_lower_bound", "u64",
        "most bytes alive at once (each rounded up to 64): no placement needs less"),
    _f("padding", "u8", "zero", 24),
))  # fmt: skip

COMMAND = Record("CommandRecord", "One kernel over its tensors: a barrier follows.", 128, (
    _f("kernel", "u32", "Kernel"),
    _f("flags", "u32", "Flag"),
    _f("layer", "u32", "decoder layer, or NONE_INDEX"),
    _f("tensors", "u32", "operands by position in KERNELS, NONE_INDEX when absent", 14),
    _f("f", "f32", "float parameters, by position in KERNELS", 4),
    _f("u", "u32", "integer parameters, by position in KERNELS", 6),
    _f("padding", "u8", "zero", 4),
    _f("cost_bytes", "u64", "bytes moved at full rows, context-dependent KV left out: see graph ops"),
    _f("cost_flops", "u64", "multiply-adds times two at full rows, context-dependent KV left out"),
))  # fmt: skip

KERNEL = Record("KernelRecord", "A kernel that the commands name, with the version it was compiled for.", 64,
    (
    _f("id", "u32", "Kernel"),
    _f("version", "u32", "KERNELS[id].version"),
    _f("name_offset", "u32", "into STRINGS"),
    _f("name_bytes", "u32", "length of the name"),
    _f("padding", "u8", "zero", 48),
))  # fmt: skip

SELFTEST = Record("SelftestRecord",
    "Begins SELFTEST; then u32 prompt tokens, u32 probe ids, f32 probe logits.", 32, (
    _f("prompt_count", "u32", "tokens of the golden prompt, at least 1"),
    _f("probe_count", "u32", "vocabulary ids whose logits after the prompt are stored"),
    _f("next_token", "u32", "the reference executor's greedy token after the prompt"),
    _f("margin", "f32", "its logit minus the runner-up's"),
    _f("tolerance", "f32", "most |logit - probe| over the probes' root mean square"),
    _f("padding", "u8", "zero", 12),
))  # fmt: skip

SAMPLING = Record("SamplingRecord",
    "How a request samples: written once at submit, read by the SAMPLE kernel.", 768, (
    _f("seed", "u64", "Philox key; the counter is the position of the sampled token"),
    _f("temperature", "f32", "0 is greedy"),
    _f("top_p", "f32", "in (0, 1]; 1 is off"),
    _f("min_p", "f32", "in [0, 1]; 0 is off"),
    _f("repetition_penalty", "f32", "above 0; 1 is off; prompt and generated tokens"),
    _f("presence_penalty", "f32", "-2 to 2; generated tokens"),
    _f("frequency_penalty", "f32", "-2 to 2; generated tokens"),
    _f("top_k", "u32", "0 is off"),
    _f("top_logprobs", "u32", "0 to 20 alternatives to report"),
    _f("want_logprob", "u32", "1 to compute the sampled token's logprob"),
    _f("min_tokens", "u32", "stop tokens are masked until this many are generated"),
    _f("max_tokens", "u32", "most tokens to generate"),
    _f("ignore_eos", "u32", "1: the plan's eos tokens do not stop this request"),
    _f("stop_count", "u32", "entries used in stop_tokens"),
    _f("bias_count", "u32", "entries used in bias_tokens and bias_values"),
    _f("stop_tokens", "u32", "tokens that end the request", 16),
    _f("bias_tokens", "u32", "tokens whose logit is shifted", 64),
    _f("bias_values", "f32", "added to the logit, -100 to 100", 64),
    _f("prompt_count", "u32", "prompt tokens: the sampled token's position less this were generated"),
    _f("eos_count", "u32", "entries used in eos_tokens; 0 when ignore_eos"),
    _f("eos_tokens", "u32", "the plan's eos tokens: they end the request and min_tokens masks them", 8),
    _f("padding", "u8", "zero", 88),
))  # fmt: skip

EVENT = Record("EventRecord", "One generated token as the reader sees it.", 192, (
    _f("token", "u32", "the sampled token"),
    _f("position", "u32", "its position in the sequence"),
    _f("finish", "u32", "Finish"),
    _f("top_count", "u32", "entries used in top_tokens and top_logprobs"),
    _f("logprob", "f32", "of the token, from the unmodified logits; 0 when not asked"),
    _f("padding", "u8", "zero", 12),
    _f("top_tokens", "u32", "most likely tokens, descending, ties by id", 20),
    _f("top_logprobs", "f32", "their logprobs", 20),
))  # fmt: skip

RECORDS = (HEADER, SECTION, REGION, TENSOR, PROGRAM, COMMAND, KERNEL, SELFTEST, SAMPLING, EVENT)


class Finish(IntEnum):
    NONE = 0  # more tokens follow
    STOP = 1  # an eos or stop token was sampled (it is the event's token)
    LENGTH = 2  # max_tokens were generated
    CANCELLED = 3  # cancelled; the event carries no token


SECTION_RECORDS: dict[Section, Record] = {
    Section.REGIONS: REGION, Section.TENSORS: TENSOR, Section.PROGRAMS: PROGRAM,
    Section.COMMANDS: COMMAND, Section.KERNELS: KERNEL,
}  # fmt: skip


# --- kernels: the operands, parameters and shapes of every command ------------------------------------------

# Dimension symbols. R..A are bound before a command's operands are looked at (R by the program, the rest by
# the header); K, N, W, P are free: bound by the first operand that has them, equal in all others.
SYMBOLS = {
    "R": "rows of the program",
    "M": "header.rows_max",
    "L": "header.head_rows_max",
    "H": "header.hidden",
    "V": "header.vocabulary",
    "D": "header.head_size",
    "G": "header.kv_heads",
    "Q": "header.query_heads * header.head_size",
    "A": "(header.query_heads + 2 * header.kv_heads) * header.head_size",
    "P": "header.rotary_pairs",
    "C": "granules that hold a context: ceil(header.context / 128)",
    "S": "header.context",
    "T": "128 tokens of a granule",
    "2": "two",
    "B": "1 + TOP_LOGPROBS_MAX",
    "Y": "bytes of a SamplingRecord",
    "K": "free: input width",
    "N": "free: output width",
    "X": "free: input width padded (i8: to 64; e4m3, bf16: to 16)",
    "Z": "free: X / 32",
    "W": "free: weight rows (N, or 2 N when PANELS_PAIRED)",
    "U": "free: weight rows padded to whole panels",
    "E": "rows of x: R, or M when GATHER",
}
# An operand in IO whose first symbol is R or E has header.rows_max rows in a BODY program and
# header.head_rows_max in a HEAD program (x with GATHER: always header.rows_max). A kernel touches only live
# rows.


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a kernel: its name, where it may live, its dtype and dimensions, and when it is there.

    `regions` lists allowed regions; `unit` the unit; `dims` symbols of SYMBOLS; `needs` a flag without which
    it must be absent (0: always present); `writes` whether the kernel writes it.
    """

    name: str
    regions: tuple[Region, ...]
    dtype: Dtype
    dims: str
    needs: int = 0
    writes: bool = False
    unit: Unit = Unit.FIXED
    layout: tuple[Layout, ...] = (Layout.ROWS,)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel's contract. Semantics and rounding rules are in runtime/README.md."""

    id: Kernel
    version: int
    flags: int
    operands: tuple[Operand, ...]
    f: tuple[str, ...] = ()
    u: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.id.name.lower()


_ARENA_IO = (Region.ARENA, Region.IO)


def _embed(id_: Kernel, dtype: Dtype) -> KernelSpec:
    scale = (Operand("weight_scale", (Region.SCALES,), Dtype.F32, "U"),) if dtype == Dtype.E4M3 else ()
    return KernelSpec(id_, 1, 0, (
        Operand("tokens", (Region.IO,), Dtype.U32, "M"),
        Operand("weight", (Region.WEIGHTS,), dtype, "V H", layout=(Layout.PANELS,)),
        Operand("out", (Region.ARENA,), Dtype.F32, "R H", writes=True),
        *scale,
    ))  # fmt: skip


def _linear(id_: Kernel, dtype: Dtype) -> KernelSpec:
    flags = Flag.NORM | Flag.BIAS | Flag.RESIDUAL | Flag.SILU_MUL | Flag.GATHER
    activation = Dtype.I8 if dtype == Dtype.I8 else Dtype.F32
    scales: tuple[Operand, ...] = ()
    if dtype == Dtype.I8:  # the weight's group scales lie inside its panels
        scales = (Operand("activation_scale", (Region.ARENA,), Dtype.F32, "R Z", writes=True),)
    elif dtype == Dtype.E4M3:
        scales = (Operand("weight_scale", (Region.SCALES,), Dtype.F32, "U"),)
    return KernelSpec(id_, 1, int(flags), (
        Operand("x", _ARENA_IO, Dtype.F32, "E K"),
        Operand("weight", (Region.WEIGHTS,), dtype, "W K", layout=(Layout.PANELS, Layout.PANELS_PAIRED)),
        Operand("norm", (Region.SCALES,), Dtype.F32, "K", needs=Flag.NORM),
        Operand("bias", (Region.SCALES,), Dtype.F32, "U", needs=Flag.BIAS),
        Operand("residual", (Region.ARENA,), Dtype.F32, "R N", needs=Flag.RESIDUAL),
        Operand("row_index", (Region.IO,), Dtype.U32, "L", needs=Flag.GATHER),
        Operand("activation", (Region.ARENA,), activation, "R X", writes=True),
        Operand("out", _ARENA_IO, Dtype.F32, "R N", writes=True),
        *scales,
    ), f=("eps",))  # fmt: skip


def _attention(id_: Kernel, dtype: Dtype) -> KernelSpec:
    kv = (Region.KV,)
    scales: tuple[Operand, ...] = ()
    if dtype == Dtype.I8:
        scales = (
            Operand("k_scale", kv, Dtype.F16, "G T", unit=Unit.GRANULE, writes=True),
            Operand("v_scale", kv, Dtype.F16, "G T", unit=Unit.GRANULE, writes=True),
        )
    return KernelSpec(id_, 1, int(Flag.ROPE | Flag.QK_NORM), (
        Operand("qkv", (Region.ARENA,), Dtype.F32, "R A"),
        Operand("rope", (Region.ARENA,), Dtype.F32, "R 2 P", needs=Flag.ROPE),
        Operand("q_norm", (Region.SCALES,), Dtype.F32, "D", needs=Flag.QK_NORM),
        Operand("k_norm", (Region.SCALES,), Dtype.F32, "D", needs=Flag.QK_NORM),
        Operand("positions", (Region.IO,), Dtype.U32, "M"),
        Operand("leases", (Region.IO,), Dtype.U32, "M"),
        Operand("granules", (Region.STATE,), Dtype.U32, "C", unit=Unit.REQUEST),
        Operand("k", kv, dtype, "G D T", unit=Unit.GRANULE, writes=True),
        Operand("v", kv, dtype, "G T D", unit=Unit.GRANULE, writes=True),
        Operand("q", (Region.ARENA,), Dtype.F32, "R Q", writes=True),
        Operand("out", (Region.ARENA,), Dtype.F32, "R Q", writes=True),
        *scales,
    ), f=("softmax_scale", "eps"), u=("window",))  # fmt: skip


KERNELS: dict[Kernel, KernelSpec] = {spec.id: spec for spec in (
    _embed(Kernel.EMBED_I8, Dtype.I8),
    _embed(Kernel.EMBED_E4M3, Dtype.E4M3),
    _embed(Kernel.EMBED_BF16, Dtype.BF16),
    KernelSpec(Kernel.ROPE_TABLE, 1, 0, (
        Operand("positions", (Region.IO,), Dtype.U32, "M"),
        Operand("inverse_frequency", (Region.SCALES,), Dtype.F32, "P"),
        Operand("out", (Region.ARENA,), Dtype.F32, "R 2 P", writes=True),
    ), f=("attention_factor",)),
    _linear(Kernel.LINEAR_I8, Dtype.I8),
    _linear(Kernel.LINEAR_E4M3, Dtype.E4M3),
    _linear(Kernel.LINEAR_BF16, Dtype.BF16),
    _attention(Kernel.ATTENTION_I8, Dtype.I8),
    _attention(Kernel.ATTENTION_E4M3, Dtype.E4M3),
    _attention(Kernel.ATTENTION_E5M2, Dtype.E5M2),
    _attention(Kernel.ATTENTION_BF16, Dtype.BF16),
    KernelSpec(Kernel.SAMPLE, 1, 0, (
        Operand("logits", (Region.IO,), Dtype.F32, "L V"),
        Operand("requests", (Region.IO,), Dtype.U32, "L"),
        Operand("positions", (Region.IO,), Dtype.U32, "L"),
        Operand("sampling", (Region.STATE,), Dtype.U8, "Y", unit=Unit.REQUEST),
        Operand("token_counts", (Region.STATE,), Dtype.U16, "V", unit=Unit.REQUEST),
        Operand("scratch", (Region.ARENA,), Dtype.U32, "R 2 V", writes=True),
        Operand("out_tokens", (Region.IO,), Dtype.U32, "L", writes=True),
        Operand("top_tokens", (Region.IO,), Dtype.U32, "L B", writes=True),
        Operand("top_logprobs", (Region.IO,), Dtype.F32, "L B", writes=True),
    )),
)}  # fmt: skip

# Tables that the runtime's step code uses directly. A plan has each exactly once, named so, with these
# shapes.
STATE_TENSORS: dict[str, tuple[Region, Unit, Dtype, str]] = {
    "engine": (Region.STATE, Unit.FIXED, Dtype.U8, "ENGINE_BYTES"),
    "granule_links": (Region.STATE, Unit.GRANULE, Dtype.U32, "4"),  # reference count, next free, 2 spare
    "request_tokens": (Region.STATE, Unit.REQUEST, Dtype.U32, "S"),
    "token_counts": (Region.STATE, Unit.REQUEST, Dtype.U16, "V"),  # bit 15: in the prompt; low 15: generated
    "granule_table": (Region.STATE, Unit.REQUEST, Dtype.U32, "C"),
    "sampling": (Region.STATE, Unit.REQUEST, Dtype.U8, "Y"),
    "events": (Region.STATE, Unit.REQUEST, Dtype.U8, "EVENT_BYTES"),  # EVENT_RING_ENTRIES EventRecords
    "request": (Region.STATE, Unit.REQUEST, Dtype.U8, "256"),  # the runtime's own bookkeeping of a request
    "row_tokens": (Region.IO, Unit.FIXED, Dtype.U32, "M"),
    "row_positions": (Region.IO, Unit.FIXED, Dtype.U32, "M"),
    "row_leases": (Region.IO, Unit.FIXED, Dtype.U32, "M"),
    "head_rows": (Region.IO, Unit.FIXED, Dtype.U32, "L"),
    "head_requests": (Region.IO, Unit.FIXED, Dtype.U32, "L"),
    "head_positions": (Region.IO, Unit.FIXED, Dtype.U32, "L"),
    "hidden": (Region.IO, Unit.FIXED, Dtype.F32, "M H"),
    "logits": (Region.IO, Unit.FIXED, Dtype.F32, "L V"),
    "out_tokens": (Region.IO, Unit.FIXED, Dtype.U32, "L"),
    "top_tokens": (Region.IO, Unit.FIXED, Dtype.U32, "L B"),
    "top_logprobs": (Region.IO, Unit.FIXED, Dtype.F32, "L B"),
}

# Operands whose values the runtime writes and a kernel uses as indices or trusts: each must be this table.
# operand -> (table in a BODY program, table in a HEAD program).
TABLE_OPERANDS: dict[str, tuple[str, str]] = {
    "tokens": ("row_tokens", "row_tokens"),
    "positions": ("row_positions", "head_positions"),
    "leases": ("row_leases", "row_leases"),
    "row_index": ("head_rows", "head_rows"),
    "requests": ("head_requests", "head_requests"),
    "granules": ("granule_table", "granule_table"),
    "sampling": ("sampling", "sampling"),
    "token_counts": ("token_counts", "token_counts"),
    "logits": ("logits", "logits"),
    "out_tokens": ("out_tokens", "out_tokens"),
    "top_tokens": ("top_tokens", "top_tokens"),
    "top_logprobs": ("top_logprobs", "top_logprobs"),
}


def round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def k_padded(k: int, dtype: Dtype) -> int:
    """Input width as kernels read it: i8 in blocks of two groups (64), e4m3 and bf16 in 16."""
    return round_up(k, I8_BLOCK if dtype == Dtype.I8 else 16)


def panel_count(weight_rows: int, layout: Layout) -> int:
    """Panels of a weight with `weight_rows` output channels (2 N of them when PANELS_PAIRED)."""
    if layout == Layout.PANELS_PAIRED:
        return 2 * round_up(weight_rows // 2, PANEL_OUTPUTS) // PANEL_OUTPUTS
    return round_up(weight_rows, PANEL_OUTPUTS) // PANEL_OUTPUTS


def panel_bytes(k: int, dtype: Dtype) -> int:
    """Bytes of one panel of 16 outputs over the padded input width.

    i8: blocks of 64 k, each 2 x 16 float16 scales (group 0 then group 1), then 16 lines of 64 bytes;
    line j holds k = 4j..4j+3: byte (output % 16) * 4 + k % 4. 1088 bytes a block.
    e4m3: lines of 64 bytes, line j holds k = 4j..4j+3 as above.
    bf16: lines of 64 bytes, line j holds k = 2j, 2j+1: element (output % 16) * 2 + k % 2.
    """
    width = k_padded(k, dtype)
    if dtype == Dtype.I8:
        return width // I8_BLOCK * I8_BLOCK_BYTES
    return width * PANEL_OUTPUTS * DTYPE_BYTES[dtype]


def tensor_bytes(dims: tuple[int, ...], dtype: Dtype, layout: Layout) -> int:
    """Bytes of a tensor, without padding after it."""
    if layout == Layout.ROWS:
        size = DTYPE_BYTES[dtype]
        for dim in dims:
            size *= dim
        return size
    return panel_count(dims[0], layout) * panel_bytes(dims[1], dtype)


def region_bytes(fixed: int, per_granule: int, per_request: int, granules: int, requests: int) -> int:
    """Bytes that a region reserves: three parts, each rounded up to a page."""
    return (
        round_up(fixed, PAGE_BYTES)
        + round_up(per_granule * granules, PAGE_BYTES)
        + round_up(per_request * requests, PAGE_BYTES)
    )
