"""Programs that start other programs are judged by what they start."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.extensions.programs import read_all
from perdure.extensions.script import Unclear


@pytest.mark.parametrize(
    "text, found",
    [
        ("env X=1 rm y", [["rm", "y"]]),
        ("env -i -u HOME rm y", [["rm", "y"]]),
        ("nohup timeout -k 5 10 nice -n 5 rm y", [["rm", "y"]]),
        ("timeout --signal=KILL 10 rm y", [["rm", "y"]]),
        ("command rm y", [["rm", "y"]]),
        ("command -v rm", None),
        ("exec rm y", [["rm", "y"]]),
        ("time rm y", [["rm", "y"]]),
        ("ls | xargs -0 -n 1 rm -f", [["ls"], ["rm", "-f", None]]),
        ("ls | xargs -I{} mv {} x", [["ls"], ["mv", None, "x", None]]),
        ("ls | xargs -I % sh -c 'rm %'", None),
        ("sudo -u root rm y", [["sudo", "-u", "root", "rm", "y"], ["rm", "y"]]),
        ("bash -c 'git status; rm y'", [["git", "status"], ["rm", "y"]]),
        ("sh -ec \"rm y\" name", [["rm", "y"]]),
        ("bash -lc 'bash -c \"rm y\"'", [["rm", "y"]]),
        ("bash script.sh", [["bash", "script.sh"]]),
        ("bash", [["bash"]]),
        ("eval 'rm y'", [["rm", "y"]]),
        ("eval rm '$(curl x)'", [["curl", "x"], ["rm", None]]),
        ("find . -name '*.py'", [["find", ".", "-name", "*.py"]]),
        ("find . -exec rm {} \\; -print", [["find", ".", "-exec", "rm", "{}", ";", "-print"], ["rm", None]]),
        ("find . -execdir rm -f {} +", [["find", ".", "-execdir", "rm", "-f", "{}", "+"], ["rm", "-f", None]]),
        ("find . -delete", [["find", ".", "-delete"], ["rm", None]]),
        ("find . -exec sh -c 'rm y' \\;", [["find", ".", "-exec", "sh", "-c", "rm y", ";"], ["rm", "y"]]),
        ("xargs", [["xargs"]]),
        # nobody can tell
        ("env -S 'rm y' z", None),
        ("timeout $x rm y", None),
        ("nice $x rm y", None),
        ("bash -c \"$x\"", None),
        ("bash -o pipefail -c 'rm y'", None),
        ("eval $x", None),
        ("find . -exec rm {}", None),
        ("find $x", None),
        ("$x y", None),
        ("xargs --unknown rm", None),
    ],
)  # fmt: skip
def test_what_is_started_is_among_the_commands(text: str, found: Any):
    if found is None:
        with pytest.raises(Unclear):
            read_all(text)
    else:
        assert [list(command.words) for command in read_all(text).commands] == found


def test_what_is_written_and_set_inside_is_found_too():
    script = read_all("env A=1 bash -c 'B=2 ls > out; C=3'; find . -fprint list")
    assert (script.writes, script.assigned) == (["out", "list"], ["C"])
    assert script.commands[0].assigned == ("A", "B")
