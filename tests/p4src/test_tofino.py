"""The Tofino builds: the committed summary, the emitted parsers, and a compilation where the backend is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4src.artifacts import ROOT
from p4src.tofino.artifacts import committed_parsers, committed_problems, committed_resources, fresh_problems
from p4src.tofino.check import parser_problems
from p4src.tofino.compiler import TARGETS, compile_for, find_compiler
from p4src.tofino.emitted_parser import EmittedParserError, read_parsers
from p4src.tofino.expected import cases
from p4src.tofino.resources import ResourceError, read_resources

SOURCES = ("include/parser.p4", "tna/checkmate.p4")
"""Where the parsers are."""
_ROW = re.compile(r"^      0[xb][0-9a-fA-F*]*[0-9a-fA-F][0-9a-fA-F*]*:\n(?:        .*\n)*", re.MULTILINE)
"""A row of a state whose pattern looks at something."""


def _source_cases() -> list[str]:
    """Return the cases of every select of the sources, without the defaults."""
    texts = [(ROOT / name).read_text() for name in SOURCES]
    return [
        case for text in texts for case in re.findall(r"^            (?!default)[^;]*: parse_\w+;", text, re.MULTILINE)
    ]


def test_what_is_committed_is_current_and_right() -> None:
    assert committed_problems() == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_takes_few_stages(target: str) -> None:
    resources = committed_resources(target)
    assert resources.ingress_stages <= 6
    assert resources.egress_stages <= 6
    assert resources.use[0].srams <= resources.srams_per_stage


def _match_lines(assembly: str) -> Iterator[re.Match[str]]:
    # min_parse_depth_... look at a counter, not at the packet.
    yield from (m for m in re.finditer(r"^      match: \[(.*)\]\n", assembly, re.MULTILINE) if "ctr" not in m.group(1))


@pytest.mark.parametrize("target", TARGETS)
def test_each_select_that_is_lost_is_noticed(target: str) -> None:
    """As the compilers do that lose selects: no match line, and every pattern a bare asterisk."""
    assembly = committed_parsers(target)
    matches = list(_match_lines(assembly))
    assert len(matches) >= sum((ROOT / name).read_text().count("select(") for name in SOURCES)
    for match in matches:
        head, body = assembly[: match.start()], assembly[match.end() :]
        end = re.search(r"^    \S|^\S", body, re.MULTILINE)
        stop = end.start() if end else len(body)
        state = re.sub(r"^      0[xb][0-9a-fA-F*]+:", "      *:", body[:stop], flags=re.MULTILINE)
        assert parser_problems(head + state + body[stop:]), f"select of {head.rsplit(chr(10), 2)[-2]} was not missed"


@pytest.mark.parametrize("target", TARGETS)
def test_each_case_of_a_select_that_is_lost_is_noticed(target: str) -> None:
    assembly = committed_parsers(target)
    rows = [row for row in _ROW.finditer(assembly) if "min_parse_depth" not in row.group()]
    # Each case of the source is there at least once.
    assert len(rows) >= len(_source_cases())
    for row in rows:
        without = assembly[: row.start()] + assembly[row.end() :]
        assert parser_problems(without), f"case {row.group().splitlines()[0].strip()} was not missed"


def test_the_cases_cover_every_header_and_its_absence() -> None:
    found = [case.ingress_headers() for case in cases()]
    for header in ("vlan", "ipv4", "ipv6", "tcp", "udp", "bth"):
        assert any(header in one for one in found)
        assert any(header not in one for one in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ingress"),
        ("parser ingress:\n  start: a\n  states:\n", "no first state"),
        ("parser ingress:\n  start: a\n  states:\n    a:\n      *:\n        next: b\n", "egress"),
    ],
)
def test_assembly_of_another_form_is_refused(text: str, problem: str) -> None:
    with pytest.raises(EmittedParserError, match=problem):
        read_parsers(text)


def test_a_parser_that_does_not_end_is_refused() -> None:
    loop = "  start: a\n  states:\n    a:\n      *:\n        next: a\n"
    parsers = read_parsers(f"parser ingress:\n{loop}parser egress:\n{loop}")
    with pytest.raises(EmittedParserError, match="does not end"):
        parsers["ingress"].walk(bytes(64))


def test_figures_of_a_failed_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"compilation_succeeded": false}')
    with pytest.raises(ResourceError, match="failed"):
        read_resources(tmp_path)
    with pytest.raises(ResourceError, match="cannot be read"):
        read_resources(tmp_path / "nothing")


@pytest.mark.parametrize("target", TARGETS)
def test_the_backend_compiles_it(target: str, tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no p4c with the Tofino backend on PATH")
    compile_for(compiler, target, tmp_path)
    assert fresh_problems(target, tmp_path) == []


def test_shared_sources_have_no_conditions() -> None:
    for path in ROOT.glob("include/*.p4"):
        assert "#if" not in path.read_text().replace("#ifndef CHECKMATE_", "")
