"""Processes of the rig: started on one CPU, ended by their own pid, measured through /proc."""
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

NICE = -10
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def prepare(cpu):
    """Runs in the child before it becomes the program."""
    def run():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.sched_setaffinity(0, {cpu})
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
            # Where sessions are scheduled as groups, the group needs it, too.
            Path("/proc/self/autogroup").write_text(str(NICE))
        except OSError:
            pass
    return run


def start(command, cpu, log):
    with open(log, "ab") as out:
        return subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=prepare(cpu), start_new_session=True)


def tree(pid):
    """The process and all below it."""
    children = {}
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            try:
                stat = Path(f"/proc/{folder}/stat").read_text()
            except OSError:
                continue
            parent = int(stat.rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(folder))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def stop(process):
    if process is None or process.poll() is not None:
        return
    pids = tree(process.pid)
    process.terminate()
    try:
        process.wait(4)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    for pid in pids[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it went with its parent


def cpu_time(pid):
    """CPU time of the tree in us: exact, of its living threads; and in clock ticks, of all."""
    exact = ticks = 0
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(field) for field in fields[11:15 if member == pid else 13])
            for thread in os.listdir(f"/proc/{member}/task"):
                stat = Path(f"/proc/{member}/task/{thread}/schedstat").read_text()
                exact += int(stat.split()[0])
        except OSError:
            pass  # it ended meanwhile
    return exact / 1000, ticks * 1e6 / os.sysconf("SC_CLK_TCK")


def cpu_between(before, after):
    exact, ticks = after[0] - before[0], after[1] - before[1]
    # A thread that ended took its exact count with it.
    return exact if exact >= ticks - 30_000 else ticks


def resident_kib(pid, field="VmRSS"):
    total = 0
    for member in tree(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        found = re.search(field + r":\s+(\d+)", status)
        total += int(found.group(1)) if found else 0
    return total


def cpu_ticks(cpu):
    """(busy with anything, stolen by the host, all) of one CPU, in clock ticks."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{cpu}":
            user, nice, system, idle, iowait, irq, softirq, steal = (int(x) for x in fields[:8])
            busy = user + nice + system + irq + softirq
            return busy, steal, busy + idle + iowait + steal
    raise RuntimeError(f"no CPU {cpu}")


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def free_ports(count, lowest=23300, highest=31000):
    """A run of free ports, below those the system hands out itself."""
    for first in range(lowest, highest, count):
        if all(is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise SystemExit(f"no {count} free ports in a row between {lowest} and {highest}")


def wait_free(port, seconds=5):
    end = time.monotonic() + seconds
    while not is_free(port):
        if time.monotonic() > end:
            raise SystemExit(f"port {port} is taken")
        time.sleep(0.05)
