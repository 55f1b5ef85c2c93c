"""Disks that are full, read-only, or mounted over a single file: real ones, in a mount namespace of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MOUNTS = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/small /mnt/ro /mnt/bind
mount -t tmpfs -o size=100k none /mnt/small
mount -t tmpfs none /mnt/ro
touch /mnt/source /mnt/bind/file
for each in small ro source; do if [ -d /mnt/$each ]; then echo old > /mnt/$each/file; fi; done
mount -o remount,ro /mnt/ro
mount --bind /mnt/source /mnt/bind/file
exec "$@"
"""
WRITES = """
import asyncio, json, os, pathlib
from perdure.errors import SandboxError
from perdure.sandboxes.local import LocalSandbox

async def told(directory, name, content):
    try:
        await LocalSandbox(directory).write(name, content)
    except SandboxError as error:
        return str(error)
    return "written"

async def main():
    large = b"x" * 200_000
    said = {
        "full": await told("/mnt/small", "file", large),
        "full, new": await told("/mnt/small", "new", large),
        "small": await told("/mnt/small", "small", b"fits"),
        "read-only": await told("/mnt/ro", "file", b"new"),
        "read-only, new": await told("/mnt/ro", "new", b"new"),
        "mounted": await told("/mnt/bind", "file", b"new"),
    }
    left = {path.name: sorted(os.listdir(path)) for path in map(pathlib.Path, ("/mnt/small", "/mnt/ro", "/mnt/bind"))}
    print(json.dumps([said, left, pathlib.Path("/mnt/small/file").read_text()]))

asyncio.run(main())
"""


def test_a_write_that_a_disk_refuses_says_why_and_leaves_the_old_content_and_nothing_else() -> None:
    unshare = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs unshare, of util-linux")
    if allowed.returncode:
        pytest.skip(f"no mount namespace can be made here: {allowed.stderr.strip()}")

    ran = subprocess.run(
        [*unshare, "sh", "-c", MOUNTS, "sh", sys.executable, "-c", WRITES], capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stderr
    said, left, content = json.loads(ran.stdout)
    assert said == {
        "full": "/mnt/small/file: no space left on device; it is as it was",
        "full, new": "/mnt/small/new: no space left on device; it is as it was",
        "small": "written",
        "read-only": "/mnt/ro/file is read-only: permission denied",
        "read-only, new": "/mnt/ro/new cannot be written: read-only file system in /mnt/ro",
        "mounted": "/mnt/bind/file is mounted by itself: write into it with a command instead",
    }
    assert left == {"small": ["file", "small"], "ro": ["file"], "bind": ["file"]}
    assert content == "old\n"
