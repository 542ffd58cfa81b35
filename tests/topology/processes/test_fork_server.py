"""Programs started by the fork server are ordinary processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.softswitch.netns import why_not
from tests.topology.fabric.test_mininet_cleanup import alive, wait_for
from topology.errors import TestbedError
from topology.processes.child import Child, follow
from topology.processes.fork_server import ForkServer

SAY = """
import json, os, random, sys
print(json.dumps({"arguments": sys.argv[1:], "name": __name__, "pid": os.getpid(), "session": os.getsid(0),
                  "random": random.random(), "net": os.readlink("/proc/self/ns/net"), "folder": os.getcwd(),
                  "open": sorted(os.listdir("/proc/self/fd")), "imported": "fractions" in sys.modules}))
print("no JSON")
print("a problem", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
LIVE = """
import json, signal, time
print(json.dumps({"event": "ready"}), flush=True)
time.sleep(600)
"""
MODULES = ["fractions", "package.__main__", "package.tool"]
FAIL = "raise ValueError('a wrong value')\n"


@pytest.fixture
def fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    for name, text in (("say", SAY), ("live", LIVE), ("fail", FAIL)):
        (tmp_path / f"program_{name}.py").write_text(text)
    (tmp_path / "package").mkdir()
    for name in ("__init__", "__main__", "tool"):
        (tmp_path / "package" / f"{name}.py").write_text("print('run' if __name__ == '__main__' else '')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ForkServer(tmp_path / "start.log", MODULES) as server:
        yield server


def run(fork_server: ForkServer, tmp_path: Path, module: str, *arguments: str, within: int | None = None) -> Child:
    return fork_server.start(module, f"program_{module}", arguments, tmp_path / f"{module}.log", within=within)


def said(child: Child) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    while not child.ended:
        lines += child.lines()
        time.sleep(0.01)
    return lines


def namespace(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def ready(child: Child) -> Child:
    heard: list[dict[str, Any]] = []
    follow([child], lambda _, line: heard.append(line), lambda: bool(heard), idle_limit=30)
    return child


def test_a_program_runs_as_by_python_m(fork_server: ForkServer, tmp_path: Path) -> None:
    children = [run(fork_server, tmp_path, "say", str(number), "two words") for number in (0, 3)]
    told = [said(child) for child in children]
    assert [child.wait(10) for child in children] == [0, 3]
    assert not any(child.running for child in children)
    [[one], [other]] = told
    assert (one["arguments"], other["arguments"]) == (["0", "two words"], ["3", "two words"])
    assert (one["name"], one["imported"]) == ("__main__", True)
    assert (one["pid"], one["session"]) == (children[0].pid, children[0].pid) != (other["pid"], other["session"])
    assert one["random"] != other["random"], "forks share their random numbers"
    assert one["net"] == namespace("self")
    assert one["folder"] == str(Path.cwd())
    assert len(one["open"]) == 4, "standard streams and the listed folder: nothing of the server is open"
    assert (tmp_path / "say.log").read_text().splitlines().count("a problem") == 2
    assert "no JSON" in (tmp_path / "say.log").read_text()


@pytest.mark.parametrize("module", ["package", "package.tool"])
def test_a_program_that_was_imported_is_run_anew(fork_server: ForkServer, tmp_path: Path, module: str) -> None:
    log = tmp_path / "package.log"
    child = fork_server.start("package", module, [], log)
    assert said(child) == []
    assert child.wait(10) == 0
    assert log.read_text() == "run\n"


def test_a_program_that_fails_leaves_its_traceback_in_the_log(fork_server: ForkServer, tmp_path: Path) -> None:
    child = run(fork_server, tmp_path, "fail")
    assert child.wait(10) == 1
    assert "ValueError: a wrong value" in str(child.failure("failed"))
    absent = run(fork_server, tmp_path, "absent")
    assert absent.wait(10) == 1
    assert "No module named program_absent" in str(absent.failure("failed"))


def test_programs_are_ended_one_by_one(fork_server: ForkServer, tmp_path: Path) -> None:
    stopped, killed, left = (ready(run(fork_server, tmp_path, "live")) for _ in range(3))
    with pytest.raises(TestbedError, match="did not end within"):
        stopped.wait(0.01)
    stopped.stop()
    assert stopped.wait(0) == -signal.SIGTERM
    killed.kill()
    assert killed.wait(0) == -signal.SIGKILL
    assert left.running
    stopped.stop()
    killed.kill()


def test_nothing_outlives_the_server(fork_server: ForkServer, tmp_path: Path) -> None:
    child = ready(run(fork_server, tmp_path, "live"))
    fork_server.close()
    wait_for(lambda: not alive({child.pid}), 10)
    with pytest.raises(TestbedError, match="does not answer"):
        run(fork_server, tmp_path, "say", "0")


def test_a_server_that_cannot_import_says_why(tmp_path: Path) -> None:
    with ForkServer(tmp_path / "start.log", ["absent_module"]) as fork_server, pytest.raises(TestbedError) as caught:
        fork_server.start("x", "json.tool", [], tmp_path / "x.log")
    assert "No module named 'absent_module'" in str(caught.value)


@pytest.mark.netns
@pytest.mark.skipif(why_not() is not None, reason=f"no namespaces: {why_not()}")
def test_a_program_enters_the_namespaces_of_a_process(fork_server: ForkServer, tmp_path: Path) -> None:
    script = 'mount -t tmpfs none /mnt && echo here > /mnt/mark && echo "$$" && exec sleep 600'
    with subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout is not None
            inside = int(p.stdout.readline())
            (tmp_path / "program_look.py").write_text(
                "print(__import__('json').dumps({'is': open('/mnt/mark').read()}))"
            )
            assert said(run(fork_server, tmp_path, "look", within=inside)) == [{"is": "here\n"}]
            [told] = said(run(fork_server, tmp_path, "say", "0", within=inside))
            assert told["net"] == namespace(inside) != namespace("self")
            assert told["folder"] == str(Path.cwd())
        finally:
            p.kill()
    gone = run(fork_server, tmp_path, "say", "0", within=inside)
    assert gone.wait(10) == 1
    assert "No such file or directory" in str(gone.failure("failed"))
