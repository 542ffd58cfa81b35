"""Starting BMv2 as it was built: with what its help lists, and with its own words where it does not start."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from jobspec.model import SwitchSpec
from tests.softswitch.switch_process import ROOT
from topology.errors import TestbedError
from topology.processes import bmv2
from topology.processes.switch_process import start_switch

HELP = """Usage: SWITCH_NAME [options] <path to JSON config file>
  -i [ --interface ] arg      attach an interface
  --pcap [=arg(=.)]           generate pcap files
  --device-id arg             device id
  --no-p4                     start without a program
Target options:
  --grpc-server-addr arg      bind the gRPC server
"""
THRIFT = "  --thrift-port arg           TCP port\n  --notifications-addr arg    nanomsg address\n"
SPEC = SwitchSpec(name="s1", ports=[1, 2])


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, otherwise: str) -> Path:
    """Put an executable on PATH that lists `text` as its help, refuses what is not in it, and else does `otherwise`."""
    program = folder / "bin" / bmv2.PROGRAM
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"text = {text!r}\n"
        "if '--help' in sys.argv: print(text); sys.exit(0)\n"
        "for word in sys.argv[1:]:\n"
        "    name = word.partition('=')[0]\n"
        "    if len(name) > 2 and name.startswith('--') and name not in text:\n"
        "        print(f\"unrecognised option '{name}'\", end=''); sys.exit(1)\n"
        f"open({str(folder / 'words')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        f"{otherwise}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def start(folder: Path) -> str:
    """Start it as the testbed does; return the words that it got."""
    child, address = start_switch("bmv2", SPEC, {}, folder, folder / "switch.log")
    child.stop()
    assert address.startswith("127.0.0.1:")
    return (folder / "words").read_text()


SERVES = f"os.chdir({str(ROOT)!r}); os.execv(sys.executable, [sys.executable, '-m', 'softswitch', *sys.argv[1:]])"


@pytest.mark.parametrize("built_with", [True, False])
def test_only_what_the_help_lists_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_with: bool) -> None:
    install(tmp_path, monkeypatch, HELP + THRIFT * built_with, SERVES)
    words = start(tmp_path)
    assert ("--thrift-port" in words) == ("--notifications-addr" in words) == built_with


def test_a_switch_that_ends_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, HELP, "print('Nobody told me about port 7', end=''); sys.exit(3)")
    with pytest.raises(TestbedError, match=r"(?s)exit status 3.*Nobody told me about port 7"):
        start(tmp_path)


def test_a_program_that_is_no_bmv2_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "libboost.so.1 not found", "")
    with pytest.raises(TestbedError, match=r"libboost\.so\.1 not found"):
        bmv2.options()
