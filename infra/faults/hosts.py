"""A Ray cluster of separate hosts on one machine: each in a network namespace of its own, joined by a bridge.

Needs root and `ip` (iproute2). The namespaces are joined to each other and to nothing else. A host is Ray's head or one
raylet; hosts can be killed and started again, and a host's cable can be pulled. Files are shared, as on a cluster with
a shared file system.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

HEAD = "10.77.0.1"
PORT = 6379
SPARED = b"EVICTBENCH_TEST="
"""In the environment of a process on a host that is not Ray's."""
_START_SECONDS = 400.0
_LOOK_SECONDS = 3.0
# Without its dashboard's agents: a node dies when they need more than 15 seconds to start, as on a busy machine.
_RAY = """
import ray._private.utils
ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("not wanted here")
from ray.scripts.scripts import main
main()
"""
_OBJECT_STORE_BYTES = 80 * 1024**2
# Without ports of their own, raylets wait 15 seconds for agents to tell theirs, and die on a busy machine.
_PORTS = (
    *("node-manager", "object-manager", "runtime-env-agent"),
    *("metrics-export", "dashboard-agent-grpc", "dashboard-agent-listen"),
)
# A host is given up after about ten silent seconds; Ray's own default is half a minute and more.
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}


def refusal() -> str | None:
    """Why hosts cannot be made here; None where they can."""
    if shutil.which("ip") is None:
        return "no `ip` command: install iproute2"
    name = f"evb-try-{os.getpid()}"
    made = _run("netns", "add", name)
    if made.returncode:
        return f"network namespaces are refused: {made.stderr.strip()}"
    _run("netns", "del", name)
    return None


class HostsFailed(Exception):
    """Ray does not start here: no finding about a campaign."""


class Hosts:
    """A head without CPUs and `nodes` hosts with two CPUs each. Use as a context; everything ends with it."""

    def __init__(self, root: Path, nodes: int, environment: dict[str, str]) -> None:
        """`root` has a short name, since Ray puts sockets there; `environment` is added to that of every host."""
        self.root, self.nodes = root, nodes
        self._tag = uuid.uuid4().hex[:6]
        self._environment = {**os.environ, **SETTINGS, **environment}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # Host to the moment from which it may start again, or its cable be plugged in.
        self._down: dict[int, float] = {}
        self._cut: dict[int, float] = {}

    @property
    def address(self) -> str:
        """For evictbench run --address, from one of the hosts."""
        return f"{HEAD}:{PORT}"

    def __enter__(self) -> Hosts:
        try:
            self._join()
            self.heal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in range(self.nodes + 1):
            self.kill(host)
            self._end(self._pids(host))
            _run("netns", "del", self._name(host))

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The command as it runs on a host."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def heal(self) -> None:
        """Every cable in, the head and at least one host up; the others follow by mend.

        A cluster whose head has died starts anew, as Ray demands. Raises HostsFailed.
        """
        self._down.clear()
        self._cut.clear()
        for host in range(1, self.nodes + 1):
            self._cable(host, "up")
        if not self._runs(0):
            for host in range(self.nodes + 1):
                self.kill(host)
            self._start(0)
            self._wait(1)
        for host in range(1, self.nodes + 1):
            self._revive(host)
        self._wait(2)

    def alive(self) -> int:
        """Hosts that Ray's head takes for alive."""
        script = (
            "from ray._raylet import GcsClient\n"
            f"nodes = GcsClient(address='{self.address}').get_all_node_info(timeout=5)\n"
            "print(sum(node.state == 0 for node in nodes.values()))"
        )
        # Gently: while hosts start, this must not take the processor from them.
        command = self.command(0, ["nice", "-n", "5", sys.executable, "-c", script])
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, env=self._environment, check=False
            )
        except subprocess.TimeoutExpired:
            return 0
        return int(done.stdout) if done.returncode == 0 else 0

    def mend(self) -> None:
        """Plug in cables that are due, and start hosts that have died."""
        now = time.monotonic()
        for host in [host for host, due in self._cut.items() if due <= now]:
            del self._cut[host]
            self._cable(host, "up")
        for host in range(1, self.nodes + 1):
            if now >= self._down.get(host, 0.0):
                self._revive(host)

    def lose(self, host: int, seconds: float) -> None:
        """Kill a host's Ray with all its workers; it starts again after some seconds, the head only by heal."""
        self._down[host] = time.monotonic() + seconds
        self.kill(host)

    def kill_raylet(self, host: int, seconds: float) -> None:
        """Kill the raylet alone; what it leaves behind must end by itself. It starts again after some seconds."""
        self._down[host] = time.monotonic() + seconds
        self._end(pid for pid in self._pids(host) if b"/raylet/raylet" in _file(pid, "cmdline").split(b"\0")[0])

    def cut(self, host: int, seconds: float) -> None:
        """Pull a host's cable for some seconds. Its processes go on; Ray's raylet ends itself when it was given up."""
        self._cut[host] = time.monotonic() + seconds
        self._cable(host, "down")

    def engines(self, seconds: float = 30.0) -> list[str]:
        """Engines that are still there after some seconds in which they may end."""
        deadline = time.monotonic() + seconds
        while (left := self._engines()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left

    def _engines(self) -> list[str]:
        pids = [pid for host in range(self.nodes + 1) for pid in self._pids(host)]
        return [f"{pid} {text!r}" for pid in pids if b"EngineWorker" in (text := _file(pid, "cmdline"))]

    def host_of(self, pid: int) -> int:
        """On which host a process runs; 1 where it has ended meanwhile."""
        with suppress(OSError):
            space = Path(f"/proc/{pid}/ns/net").stat().st_ino
            for host in range(1, self.nodes + 1):
                if Path(f"/run/netns/{self._name(host)}").stat().st_ino == space:
                    return host
        return 1

    def kill(self, host: int) -> None:
        """SIGKILL for everything on a host that belongs to Ray; drivers on the head go on."""
        self._end(pid for pid in self._pids(host) if SPARED not in _file(pid, "environ"))
        if (process := self._processes.pop(host, None)) is not None:
            process.kill()
            process.wait()

    def _join(self) -> None:
        for host in range(self.nodes + 1):
            _ip("netns", "add", self._name(host))
            _ip("-n", self._name(host), "link", "set", "lo", "up")
        head = self._name(0)
        _ip("-n", head, "link", "add", "bridge", "type", "bridge")
        _ip("-n", head, "addr", "add", f"{HEAD}/24", "dev", "bridge")
        _ip("-n", head, "link", "set", "bridge", "up")
        for host in range(1, self.nodes + 1):
            name, port = self._name(host), f"port{host}"
            _ip("link", "add", port, "netns", head, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", head, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _start(self, host: int) -> None:
        memory = ["--object-store-memory", str(_OBJECT_STORE_BYTES), "--disable-usage-stats", "--block"]
        memory += ["--include-log-monitor", "false"]
        ports = [f"--{name}-port={PORT + place}" for place, name in enumerate(_PORTS, start=1)]
        if host == 0:
            options = ["--head", "--port", str(PORT), "--node-ip-address", HEAD, "--num-cpus", "0"]
            options += ["--include-dashboard", "false", "--no-monitor", "--temp-dir", str(self.root)]
        else:
            options = ["--address", self.address, "--node-ip-address", f"10.77.0.{host + 1}", "--num-cpus", "2"]
        with (self.root / f"host{host}.log").open("ab") as log:
            self._processes[host] = subprocess.Popen(
                self.command(host, [sys.executable, "-c", _RAY, "start", *options, *ports, *memory]),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, process_group=0,
            )  # fmt: skip

    def _wait(self, hosts: int) -> None:
        """Until so many hosts are alive. On a busy machine Ray gives a start up; then it is tried again."""
        deadline = time.monotonic() + _START_SECONDS
        while self.alive() < hosts:
            if time.monotonic() > deadline:
                raise HostsFailed(f"{hosts} hosts did not come up within {_START_SECONDS:.0f} s: see {self.root}")
            for host in list(self._processes):
                self._revive(host)
            time.sleep(_LOOK_SECONDS)

    def _revive(self, host: int) -> None:
        if not self._runs(host):
            self.kill(host)
            self._start(host)

    def _runs(self, host: int) -> bool:
        return host in self._processes and self._processes[host].poll() is None

    def _cable(self, host: int, state: str) -> None:
        _run("-n", self._name(host), "link", "set", "eth0", state)

    def _pids(self, host: int) -> list[int]:
        return [int(pid) for pid in _run("netns", "pids", self._name(host)).stdout.split()]

    def _end(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _name(self, host: int) -> str:
        return f"evb-{self._tag}-{host}"


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def _ip(*arguments: str) -> None:
    if (done := _run(*arguments)).returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
