"""The Mininet network of a testbed: a namespace for each host, a veth pair for each link and trunk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jobspec.model import Host, Job, ShadowNode
from topology.errors import TestbedError
from topology.fabric.participants import switch_port
from topology.fabric.port_captures import interface_name
from topology.simulation.event_loop import SwitchPort

_OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan")
_NO_OFFLOADS = [word for name in _OFFLOADS for word in (name, "off")]
_NOT_FOUND = " not found"
_ALIAS = "checkmate testbed, process "
"""Interface alias (ip-link(8)) that marks a testbed's interfaces, with its process id."""


def unavailable_reason() -> str | None:
    """Return why Mininet cannot be used on this machine, None if it can."""
    if os.geteuid() != 0:
        return "not root"
    if not Path("/proc/self/ns/net").exists():
        return "the kernel has no network namespaces"
    missing = [tool for tool in ("mnexec", "ip", "ethtool", "ifconfig") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)}{_NOT_FOUND}"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"a network namespace cannot be made: {probe.stderr.strip()}"
    return None


def is_missing(lacking: str) -> bool:
    """Return whether `install_mininet` would fix what `unavailable_reason` returned."""
    return lacking.endswith(_NOT_FOUND)


def install_mininet() -> str | None:
    """Install Debian's mininet package (mnexec and the tools it needs); return why that failed, None when it worked."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("apt-get") is None:
        return "no apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "mininet", "ethtool", "net-tools"]):
        done = subprocess.run(
            ["apt-get", "-q", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return f"apt-get {arguments[0]}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
    return None


def standby_of(switch: str) -> str:
    """Return the name of the standby of `switch`."""
    return f"{switch}b"


class MininetNetwork:
    """Hosts, shadow nodes, their links to the switches' interfaces (in the root namespace), and trunks."""

    def __init__(self, job: Job, hosts: Sequence[Host | ShadowNode], *, standby: bool = False) -> None:
        """Build the network for `hosts` of `job`; the switch processes are not part of it.

        Args:
            job: the job.
            hosts: the hosts and shadow nodes that take part.
            standby: also attach every host to the standby of its switch (see `standby_of`), at the same port.

        Raises:
            TestbedError: Mininet cannot build it, or interfaces of these names exist.
        """
        from mininet.log import setLogLevel  # imported late: the in-process fabric runs without Mininet
        from mininet.net import Mininet
        from mininet.node import Host as MininetHost
        from mininet.node import Switch

        class Ports(Switch):  # type: ignore[misc]  # mininet is untyped
            """Holds a switch's interfaces; the switch program runs outside of Mininet."""

            def start(self, controllers: list[Any]) -> None:
                """Do nothing: see the class."""

            def stop(self, deleteIntfs: bool = True) -> None:
                """Remove the interfaces."""
                super().stop(deleteIntfs)

        setLogLevel("critical")
        Mininet.inited = True  # or it would change a dozen of the machine's sysctls permanently
        self.job = job
        trunks = [(SwitchPort(*one), SwitchPort(*other)) for one, other in (trunk.ends for trunk in job.trunks)]
        names = [switch.name for switch in job.switches]
        names += [standby_of(name) for name in names] if standby else []
        self._interfaces: dict[str, dict[int, str]] = {name: {} for name in names}
        self._links = 2 if standby else 1
        for port in chain(*(self._ports(end) for end in hosts), *trunks):
            self._interfaces[port.switch][port.port] = interface_name(port)
        self._clear_leftovers()
        self._net = Mininet(topo=None, controller=None, build=False, autoSetMacs=False, cleanup=False)
        try:
            switches = {name: self._net.addSwitch(name, cls=Ports, inNamespace=False) for name in names}
            self._nodes = {}
            for end in hosts:
                node = self._net.addHost(end.name, cls=MininetHost, ip=None, mac=None)
                self._nodes[end.name] = node
                node.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
                for number, port in enumerate(self._ports(end)):
                    self._net.addLink(node, switches[port.switch], port1=number, port2=port.port)
                    self._prepare_switch_side(port)
                    self._prepare_host(end, self.interfaces(end.name)[number])
            for one, other in trunks:
                self._net.addLink(switches[one.switch], switches[other.switch], port1=one.port, port2=other.port)
                self._prepare_switch_side(one)
                self._prepare_switch_side(other)
        except Exception as error:
            self.stop()
            if isinstance(error, TestbedError):
                raise
            raise TestbedError("mininet", str(error)) from error

    def switch_interfaces(self, switch: str) -> dict[int, str]:
        """Return switch port -> interface in the root namespace."""
        return dict(self._interfaces[switch])

    def interfaces(self, name: str) -> list[str]:
        """Return the interfaces of host `name` in its namespace, that to its switch first."""
        return [f"{name}-eth{number}" for number in range(self._links)]

    def divide(self, end: Host | ShadowNode) -> tuple[str, str]:
        """Make a second link in the namespace of host `end`, which a process bridges to the link to the switch.

        Returns:
            The interface for the host to use, and the other end of the second link.

        Raises:
            TestbedError: it cannot be made.
        """
        near, far = f"{end.name}-near", f"{end.name}-far"
        inside = ["mnexec", "-a", str(self.pid(end.name))]
        _run([*inside, "ip", "link", "add", near, "type", "veth", "peer", "name", far])
        self._prepare_host(end, near)
        subprocess.run([*inside, "ethtool", "-K", far, *_NO_OFFLOADS], capture_output=True, check=False)
        _run([*inside, "ip", "link", "set", "dev", far, "mtu", str(self.job.network.mtu), "up"])
        return near, far

    def set_ports_down(self, switch: str) -> None:
        """Set all ports of `switch` down, as if its machine lost power: its hosts lose the carrier.

        Raises:
            TestbedError: a port cannot be set down.
        """
        for interface in self._interfaces[switch].values():
            _run(["ip", "link", "set", "dev", interface, "down"])

    def pid(self, name: str) -> int:
        """Return the id of the process that owns the namespaces of host `name`."""
        return int(self._nodes[name].pid)

    def stop(self) -> None:
        """Remove hosts, links and namespaces."""
        self._net.stop()

    def _prepare_switch_side(self, port: SwitchPort) -> None:
        """Set MTU, offloads, IPv6 and alias of a switch's interface.

        This precedes the start of the switch: BMv2 silently drops frames larger than the MTU that it found. Offloads
        are off at both ends of a link, or the switch would see partial checksums. IPv6 is off, or the kernel's own
        packets would enter the pipeline.
        """
        name, mtu = interface_name(port), str(self.job.network.mtu)
        _run(["ip", "link", "set", "dev", name, "alias", f"{_ALIAS}{os.getpid()}"])
        _run(["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"])
        # ethtool exits with 1 or 2 if a feature is fixed; a wrong setting shows in the checksums on the wire.
        subprocess.run(["ethtool", "-K", name, *_NO_OFFLOADS], capture_output=True, check=False)
        _run(["ip", "link", "set", "dev", name, "mtu", mtu, "up"])

    def _ports(self, end: Host | ShadowNode) -> list[SwitchPort]:
        port = switch_port(self.job, end)
        return [port, SwitchPort(standby_of(port.switch), port.port)][: self._links]

    def _prepare_host(self, end: Host | ShadowNode, name: str) -> None:
        """Set MTU, offloads and the address on interface `name` of a host."""
        mtu = str(self.job.network.mtu)
        inside = ["mnexec", "-a", str(self.pid(end.name))]
        subprocess.run([*inside, "ethtool", "-K", name, *_NO_OFFLOADS], capture_output=True, check=False)
        _run([*inside, "ip", "link", "set", "dev", name, "address", end.mac, "mtu", mtu, "up"])

    def _clear_leftovers(self) -> None:
        """Remove the interfaces of a crashed testbed; refuse if they are not a testbed's or it still runs."""
        shown = subprocess.run(["ip", "-json", "link", "show"], capture_output=True, text=True, check=True)
        present = {link["ifname"]: link for link in json.loads(shown.stdout or "[]")}
        for name in chain.from_iterable(ports.values() for ports in self._interfaces.values()):
            if name not in present:
                continue
            alias = str(present[name].get("ifalias", ""))
            owner = alias.removeprefix(_ALIAS)
            if not alias.startswith(_ALIAS) or not owner.isdigit():
                raise TestbedError("mininet", f"interface {name} exists and is not a testbed's",
                                   "give the job's switches other names, or remove the interface")  # fmt: skip
            if Path(f"/proc/{owner}").exists():
                raise TestbedError("mininet", f"interface {name} belongs to the running testbed of process {owner}",
                                   "wait for it, or give the job's switches other names")  # fmt: skip
            _run(["ip", "link", "del", name])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError("mininet", f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
