"""The memory report: terms that add up to what the runtime reserves, tables and page that say the same."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.compiler.memory.page import default_budgets, memory_page, page_text
from ingot.compiler.memory.picture import Segment, magnified_bar
from ingot.compiler.memory.report import concurrency_text, memory_table, summary_table
from ingot.compiler.memory.terms import kind_of, largest_program, memory_map
from ingot.plans.layout import Dtype, Family, Region, region_bytes
from ingot.plans.records import PlanTables
from ingot.plans.sizing import concurrency_table
from rich.console import Console, RenderableType
from support.tiny_plan import TinySpec, tiny_plan

TABLES = tiny_plan(TinySpec(layers=2)).tables
FORMATS = [(Dtype.I8, Dtype.I8), (Dtype.E4M3, Dtype.E5M2), (Dtype.BF16, Dtype.BF16)]


def shown(renderable: RenderableType, width: int = 160) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


@pytest.mark.parametrize(("weights", "kv"), FORMATS)
@settings(max_examples=20, deadline=None)
@given(granules=st.integers(1, 64), requests=st.integers(1, 8))
def test_terms_add_up_to_what_is_reserved(weights: Dtype, kv: Dtype, granules: int, requests: int) -> None:
    """Goal: for every pool, each region's terms sum exactly to the contract's formula, and the
    total to all.
    """
    tables = tiny_plan(TinySpec(weights=weights, kv=kv, layers=2, bias=True, qk_norm=True)).tables
    found = memory_map(tables, granules * 128, requests)
    for entry, region in zip(tables.regions, found.regions, strict=True):
        fixed, granule, request = entry.bytes_fixed, entry.bytes_per_granule, entry.bytes_per_request
        assert region.bytes == region_bytes(fixed, granule, request, granules, requests)
        assert sum(term.bytes for term in region.terms) == region.bytes
        assert all(term.bytes > 0 for term in region.terms)
    assert sum(region.bytes for region in found.regions) == found.total_bytes


def test_terms_say_how_they_come_about() -> None:
    """Goal: layers are one term; granules and requests are factors; the arena names its largest program."""
    found = memory_map(TABLES, 5 * 128, 3)
    terms = {region.kind: {term.name: term for term in region.terms} for region in found.regions}
    assert terms[Region.KV]["k (i8)"].sum == "5 granules x 2 layers x 2,048 bytes"
    assert terms[Region.KV]["k (i8)"].bytes == 5 * 2 * 2048
    assert terms[Region.STATE]["sampling (u8)"].sum == "3 requests x 768 bytes"
    assert terms[Region.WEIGHTS]["qkv.weight (i8)"].sum.startswith("2 layers x ")
    largest = max(TABLES.programs, key=lambda program: program.arena_bytes)
    name = f"largest program {largest.family.name.lower()}[{largest.rows}]"
    assert terms[Region.ARENA][name].bytes <= largest.arena_lower_bound


def test_a_pool_over_the_ceiling_is_refused() -> None:
    """Goal: what the plan does not allow is not sized as if it did."""
    header: Any = TABLES.header
    with pytest.raises(ValueError, match="kv tokens"):
        memory_map(TABLES, (header["granules_max"] + 1) * 128)
    with pytest.raises(ValueError, match="requests"):
        memory_map(TABLES, None, header["requests_max"] + 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layer.12.qkv.weight", "qkv.weight"),
        ("body.16/layer.3.qkv", "qkv"),
        ("body.16/embedded", "embedded"),
        ("final_norm.weight", "final_norm.weight"),
        ("body4.layer1.q", "body4.q"),
    ],
)
def test_kind_of(name: str, kind: str) -> None:
    """Goal: a kind is the name without program and layer, and nothing more is cut off."""
    assert kind_of(name) == kind


def test_tables_show_the_exact_numbers() -> None:
    """Goal: the terminal's tables hold every region's exact bytes and the total, and state the base
    process.
    """
    found = memory_map(TABLES, 640, 2)
    for text in (shown(memory_table(TABLES, 640, 2)), shown(summary_table(found))):
        for region in found.regions:
            assert f"{region.bytes:,}" in text
            assert region.kind.name.lower() in text
        assert f"{found.total_bytes:,}" in text
    assert "4.0 MiB for the native runtime" in re.sub(r"\s+", " ", shown(memory_table(TABLES)))
    entries = concurrency_table(TABLES, found.total_bytes)
    text = shown(concurrency_text(entries, found.total_bytes))
    for entry in entries:
        assert re.search(rf"^\s*{entry.context}\s+{entry.requests}\s+{entry.bound}", text, re.MULTILINE)


def test_narrow_terminals_keep_the_numbers() -> None:
    """Goal: at 80 columns words wrap, but no byte count is cut."""
    found = memory_map(TABLES, 640, 2)
    text = shown(memory_table(TABLES, 640, 2), 80)
    for region in found.regions:
        assert f"{region.bytes:,}" in text
        for term in region.terms:
            assert f"{term.bytes:,}" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_concurrency_of_nothing_says_what_one_takes() -> None:
    """Goal: a budget below one request shows 0 and what one needs, not an empty table."""
    (entry,) = concurrency_table(TABLES, 4096, [128])
    text = shown(concurrency_text((entry,), 4096))
    assert re.search(r"128\s+0\s+memory\s+-\s+-", text)


class Reader(HTMLParser):
    """Checks that tags nest, and collects text, tags and attributes."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_page_is_complete_and_loads_nothing() -> None:
    """Goal: well-formed HTML and SVG; no script, link, image or address; light and dark; the same
    every time.
    """
    page = page_text(TABLES)
    reader = read(page)
    assert reader.tags.isdisjoint({"script", "link", "img", "iframe", "object", "a"})
    assert not re.search(r"https?:|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page
    assert page == page_text(TABLES)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 2 + len(Region)
    for picture in pictures:
        ElementTree.fromstring(picture)
    classes = {value for name, value in reader.attributes if name == "class"}
    for style in {word for value in classes for word in value.split() if word.startswith(("kind", "shade"))}:
        assert f".{style} {{" in page, f"class {style} has no colour"


def test_page_says_what_the_map_says() -> None:
    """Goal: every region's bytes, every arena tensor of the shown programs, and every program are on the
    page.
    """
    found = memory_map(TABLES)
    text = "".join(read(page_text(TABLES)).text)
    for region in found.regions:
        assert f"{region.bytes:,}" in text
        for term in region.terms:
            assert term.name in text
    for family in (Family.BODY, Family.HEAD):
        program = largest_program(TABLES, family)
        for tensor in TABLES.tensors[program.tensor_begin : program.tensor_begin + program.tensor_count]:
            assert f"{tensor.name}\n" in text
    for program in TABLES.programs:
        assert f"{program.family.name.lower()}[{program.rows}]" in text


def test_a_chosen_program_is_shown() -> None:
    """Goal: the picture is of the program asked for, with a box per tensor inside the picture."""
    program = TABLES.programs[1]
    page = page_text(TABLES, programs=[program])
    assert "The arena of body[2]" in page
    assert "The arena of head" not in page
    (picture,) = (p for p in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "arena of body[2]" in p)
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = list(root.iter("rect"))
    assert len(boxes) == program.tensor_count
    for box in boxes:
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.1
        assert 0 <= y <= y + h <= height


def hostile(tables: PlanTables) -> PlanTables:
    evil = "</title><script>alert('1')</script>&\"x\""
    tensors = tuple(replace(tensor, name=f"{tensor.name}{evil}") for tensor in tables.tensors)
    return replace(tables, tensors=tensors, meta={**tables.meta, "name": evil})


def test_text_is_escaped() -> None:
    """Goal: names out of a plan stay text, in HTML, in SVG and in the terminal's markup."""
    reader = read(page_text(hostile(TABLES)))
    assert "script" not in reader.tags
    assert any("<script>" in text for text in reader.text)
    tagged = replace(TABLES, tensors=tuple(replace(t, name=f"[red]{t.name}") for t in TABLES.tensors))
    assert "[red]" in shown(memory_table(tagged))


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8))
def test_bars_are_proportional(sizes: list[int]) -> None:
    """Goal: in the whole's bar a segment's width is its share of the bytes, whatever the sizes."""
    segments = [Segment(f"s{i}", f"style{i}", size, "") for i, size in enumerate(sizes)]
    root = ElementTree.fromstring(magnified_bar(segments, "all"))
    whole = sum(sizes)
    for i, size in enumerate(sizes):
        box = next(box for box in root.iter("rect") if box.attrib["class"] == f"style{i}")
        share = size / whole if whole else 0.0
        assert float(box.attrib["width"]) == pytest.approx(1000 * share, abs=0.01)


def test_default_budgets() -> None:
    """Goal: the total itself, then four powers of two from the first GiB that holds it."""
    assert default_budgets(5 << 20) == (5 << 20, 1 << 30, 2 << 30, 4 << 30, 8 << 30)
    assert default_budgets(3 << 30) == (3 << 30, 4 << 30, 8 << 30, 16 << 30, 32 << 30)


def test_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an old page stays when writing fails, no temporary file is left, and permissions are
    the usual.
    """
    path = tmp_path / "memory.html"
    memory_page(TABLES, path)
    assert path.read_text() == page_text(TABLES)
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").unlink()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        memory_page(hostile(TABLES), path)
    assert path.read_text() == page_text(TABLES)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="No such file"):
        memory_page(TABLES, tmp_path / "missing" / "memory.html")
