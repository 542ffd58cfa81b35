from __future__ import annotations

from p4src import compile as p4compile
from p4src.artifacts import BUILD, CONFIG_FILE, DIGEST_FILE
from p4src.constants import NotReplicated


def test_nothing_committed_is_stale() -> None:
    # Where p4c is on PATH this also recompiles and compares.
    assert p4compile.stale() == []


def test_a_changed_source_is_noticed(monkeypatch, tmp_path) -> None:
    for path in p4compile.ROOT.rglob("*.p4"):
        copy = tmp_path / path.relative_to(p4compile.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(p4compile, "ROOT", tmp_path)
    assert p4compile.source_digest() == (BUILD / DIGEST_FILE).read_text().strip()
    changed = tmp_path / "include" / "rewrite.p4"
    changed.write_text(changed.read_text().replace("// Egress:", "// At egress:"))
    assert p4compile.source_digest() == (BUILD / DIGEST_FILE).read_text().strip()
    changed.write_text(changed.read_text() + "\n")
    assert any("make p4" in sentence for sentence in p4compile.stale())


def test_constants_reach_the_p4_source() -> None:
    text = p4compile.CONSTANTS_FILE.read_text()
    for reason in NotReplicated:
        assert f"REASON_{reason.name} = {int(reason)};" in text


def test_the_config_names_no_folder_of_the_machine_that_made_it() -> None:
    text = (BUILD / CONFIG_FILE).read_text()
    assert '"program" : "v1model/checkmate.p4"' in text
    assert "/tmp" not in text
    assert "/home" not in text
