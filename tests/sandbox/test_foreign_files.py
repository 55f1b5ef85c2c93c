"""Files and directories of other users, as an unprivileged one meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NOBODY = 65534

WRITES = """
import json, os, sys
from perdure.errors import SandboxError
from perdure.sandboxes.files import Write
root, uid = sys.argv[1], int(sys.argv[2])
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
said = {}
for name in sys.argv[3:]:
    try:
        Write(os.path.join(root, name), b"new", "1-" + name.replace("/", "-")).run()
        found = os.stat(os.path.join(root, name))
        said[name] = [oct(found.st_mode & 0o7777), found.st_uid, found.st_gid]
    except SandboxError as error:
        said[name] = str(error).replace(root, "")
print(json.dumps(said))
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """Where everybody can get to, unlike the directories that pytest makes."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def told(root: Path, *names: str) -> dict[str, object]:
    """What became of writes of these files, by a user who is not root."""
    uid = NOBODY if os.getuid() == 0 else 0
    argv = [sys.executable, "-c", WRITES, str(root), str(uid), *names]
    found: dict[str, object] = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return found


def test_a_read_only_file_and_a_directory_without_the_right_to_write_stay_as_they_are(root: Path) -> None:
    (root / "file").write_text("old")
    (root / "file").chmod(0o444)
    (root / "closed").mkdir()
    (root / "closed/file").write_text("old")
    (root / "closed/file").chmod(0o666)
    (root / "closed").chmod(0o555)

    said = told(root, "file", "closed/file", "closed/new")

    (root / "closed").chmod(0o755)
    assert said == {
        "file": "/file is read-only: permission denied",
        "closed/file": "/closed/file cannot be written: permission denied in /closed",
        "closed/new": "/closed/new cannot be written: permission denied in /closed",
    }
    assert (root / "file").read_text() == (root / "closed/file").read_text() == "old"
    assert os.listdir(root / "closed") == ["file"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_that_may_be_written_becomes_the_writers_without_its_set_id_bits(root: Path) -> None:
    (root / "shared").write_text("old")
    os.chown(root / "shared", 0, NOBODY)
    (root / "shared").chmod(0o4770)

    assert told(root, "shared") == {"shared": ["0o770", NOBODY, NOBODY]}
    assert (root / "shared").read_text() == "new"
