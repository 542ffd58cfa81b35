"""The Mininet side of the testbed: a namespace for each host, a veth pair for each link, trunks too."""

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
from topology.fabric.roles import place_of
from topology.processes.port_captures import interface_name
from topology.simulation.event_loop import Place

_OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan")
_NO_OFFLOADS = [word for name in _OFFLOADS for word in (name, "off")]
_NOT_FOUND = " not found"
_ALIAS = "checkmate testbed, process "
"""Interface alias (ip-link(8)): marks what is ours, and whose."""


def why_not() -> str | None:
    """Return what Mininet lacks on this machine, None when it can be used."""
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
    """Tell whether what `why_not` has returned would be mended by `install_mininet`."""
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
    """Hosts, shadows, their links to the switches' interfaces (in the root namespace), and trunks between those."""

    def __init__(self, job: Job, hosts: Sequence[Host | ShadowNode], *, standby: bool = False) -> None:
        """Build the network for `hosts` of `job`; the switch processes are not part of it.

        Args:
            job: the job.
            hosts: those that take part.
            standby: attach every host to the standby of its switch too (see `standby_of`), at the same port.

        Raises:
            TestbedError: Mininet cannot build it, or another testbed's interfaces are in the way.
        """
        from mininet.log import setLogLevel  # imported late: not needed in process
        from mininet.net import Mininet
        from mininet.node import Host as MininetHost
        from mininet.node import Switch

        class Ports(Switch):  # type: ignore[misc]  # mininet is untyped
            """Holds a switch's interfaces; the program that switches runs beside Mininet."""

            def start(self, controllers: list[Any]) -> None:
                """Do nothing: see the class."""

            def stop(self, deleteIntfs: bool = True) -> None:
                """Remove the interfaces."""
                super().stop(deleteIntfs)

        setLogLevel("critical")
        Mininet.inited = True  # or it would set a dozen of the machine's sysctls, for good
        self.job = job
        trunks = [(Place(*one), Place(*other)) for one, other in (trunk.ends for trunk in job.trunks)]
        names = [switch.name for switch in job.switches]
        names += [standby_of(name) for name in names] if standby else []
        self._interfaces: dict[str, dict[int, str]] = {name: {} for name in names}
        self._links = 2 if standby else 1
        for place in chain(*(self._places(end) for end in hosts), *trunks):
            self._interfaces[place.switch][place.port] = interface_name(place)
        self._clear_leftovers()
        self._net = Mininet(topo=None, controller=None, build=False, autoSetMacs=False, cleanup=False)
        try:
            switches = {name: self._net.addSwitch(name, cls=Ports, inNamespace=False) for name in names}
            self._nodes = {}
            for end in hosts:
                node = self._net.addHost(end.name, cls=MininetHost, ip=None, mac=None)
                self._nodes[end.name] = node
                node.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
                for number, place in enumerate(self._places(end)):
                    self._net.addLink(node, switches[place.switch], port1=number, port2=place.port)
                    self._prepare_switch_side(place)
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
        """Return the interfaces of host `name`, within its namespace; the first is the one to its switch."""
        return [f"{name}-eth{number}" for number in range(self._links)]

    def divide(self, end: Host | ShadowNode) -> tuple[str, str]:
        """Put a second link within the namespace of host `end`, for a process that joins it with the one to the switch.

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

    def take_carrier(self, switch: str) -> None:
        """Set all ports of `switch` down, as when its machine has no power: the hosts see that their carrier is lost.

        Raises:
            TestbedError: a port cannot be set down.
        """
        for interface in self._interfaces[switch].values():
            _run(["ip", "link", "set", "dev", interface, "down"])

    def pid(self, name: str) -> int:
        """Return the process whose namespaces are those of host `name`."""
        return int(self._nodes[name].pid)

    def stop(self) -> None:
        """Remove hosts, links and namespaces."""
        self._net.stop()

    def _prepare_switch_side(self, place: Place) -> None:
        """Set MTU, offloads, IPv6 and our mark on a switch's interface.

        Before the switch starts: BMv2 silently loses frames that are larger than the MTU it found. Offloads are off on
        both ends of a link, or the switch would see partial checksums; IPv6 is off, or the kernel's own packets would
        enter the pipeline.
        """
        name, mtu = interface_name(place), str(self.job.network.mtu)
        _run(["ip", "link", "set", "dev", name, "alias", f"{_ALIAS}{os.getpid()}"])
        _run(["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"])
        # ethtool answers 1 or 2 for features that are fixed; what matters is checked by the checksums on the wire.
        subprocess.run(["ethtool", "-K", name, *_NO_OFFLOADS], capture_output=True, check=False)
        _run(["ip", "link", "set", "dev", name, "mtu", mtu, "up"])

    def _places(self, end: Host | ShadowNode) -> list[Place]:
        place = place_of(self.job, end)
        return [place, Place(standby_of(place.switch), place.port)][: self._links]

    def _prepare_host(self, end: Host | ShadowNode, name: str) -> None:
        """Set MTU, offloads and the address on interface `name` of a host."""
        mtu = str(self.job.network.mtu)
        inside = ["mnexec", "-a", str(self.pid(end.name))]
        subprocess.run([*inside, "ethtool", "-K", name, *_NO_OFFLOADS], capture_output=True, check=False)
        _run([*inside, "ip", "link", "set", "dev", name, "address", end.mac, "mtu", mtu, "up"])

    def _clear_leftovers(self) -> None:
        """Remove interfaces that a crashed testbed left; refuse to touch anybody else's."""
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
