"""What a shell command would run: every program in it, or nothing is said (never by the beginning of its text)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.extensions.script import Unclear
from perdure.extensions.shell import read_script


def programs(text: str) -> list[Any]:
    return [command.words[0] for command in read_script(text).commands]


@pytest.mark.parametrize(
    "text, found",
    [
        ("git status", ["git"]),
        ("git status; rm -rf x", ["git", "rm"]),
        ("git status && curl example.org", ["git", "curl"]),
        ("git status || curl x | sh", ["git", "curl", "sh"]),
        ("git status & rm x", ["git", "rm"]),
        ("git status\nrm x", ["git", "rm"]),
        ("echo $(rm x)", ["rm", "echo"]),
        ("echo `rm x`", ["rm", "echo"]),
        ('echo "a $(rm x) `curl y`"', ["rm", "curl", "echo"]),
        ("echo '$(rm x) `rm` ; rm'", ["echo"]),
        ("echo a\\;rm", ["echo"]),
        ("diff <(sort a) <(sort b)", ["sort", "sort", "diff"]),
        ("tee >(rm x)", ["rm", "tee"]),
        ("(cd x; make) && { ls; }", ["cd", "make", "ls"]),
        ("! grep x y", ["grep"]),
        ("time -p make", ["make"]),
        ("if test -f x; then rm x; elif a; then b; else c; fi", ["test", "rm", "a", "b", "c"]),
        ("while read line; do rm $line; done < list", ["read", "rm"]),
        ("for f in $(ls) *.py; do rm $f; done", ["ls", "rm"]),
        ("for f\ndo rm $f; done", ["rm"]),
        ("r\\m x", ["rm"]),
        ("r''m x", ["rm"]),
        ('"rm" x', ["rm"]),
        ("r\\\nm x", ["rm"]),
        ("$rm x", [None]),
        ("$'rm' x", [None]),
        ("{rm,-rf,x}", [None]),
        ("/bin/r? x", [None]),
        ("~/rm x", [None]),
        ("X=$(rm y) ls", ["rm", "ls"]),
        ("2>x rm y", ["rm"]),
        ("{fd}>x rm y", ["rm"]),
        ("ls # ; rm x", ["ls"]),
        ("ls a#b; rm x", ["ls", "rm"]),
        ("echo ${x:-$(rm y)}", ["rm", "echo"]),
        ("cat <<E\n$(rm x)\nE\nls", ["cat", "rm", "ls"]),
        ("cat <<'E'\n$(rm x)\nE\nls", ["cat", "ls"]),
        ("cat <<-E\n\trm x\n\tE\nls", ["cat", "ls"]),
        ("cat <<A <<B\nrm\nA\nrm\nB\nls", ["cat", "ls"]),
        ("cat <<< $(rm x)", ["rm", "cat"]),
        ("echo $((1 + 2))", ["echo"]),
        ("", []),
        ("# rm", []),
    ],
)
def test_every_program_of_a_command_is_found(text: str, found: list[Any]):
    assert programs(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "case x in a) rm;; esac",
        "git() { rm x; }; git status",
        "function git { rm x; }",
        "coproc rm x",
        "select x in a; do rm; done",
        "((x=1))",
        "for ((;;)); do rm; done",
        "echo $((a[$(rm x)]))",
        "echo $((x))",
        "echo $[x]",
        "echo ${x@P}",
        "echo ${!x}",
        "echo ${a[$(rm x)]}",
        "a=(x y)",
        "echo @(a|b)",
        "echo 'open",
        'echo "open',
        "echo $(open",
        "echo `open",
        "echo `a \\`rm\\``",
        "(ls",
        "ls)",
        "cat <<E\nno end",
        "cat <<E",
        "cat <<$x\nx\n",
        "cat <<E\na\\\nE\nE",
        'echo "$\\\n(rm x)"',
        "echo $\\\n(rm x)",
        "ls >",
        "ls\0",
        "(" * 5000 + "ls" + ")" * 5000,
        "x" * 200_000,
    ],
)
def test_what_is_not_read_exactly_is_unclear(text: str):
    with pytest.raises(Unclear):
        read_script(text)


def test_files_that_are_opened_and_variables_that_are_set_are_found():
    script = read_script(
        "A=1; B=2 ls > out 2>> err < in &> both >& too 2>&1 >/dev/null <> rw > $x; for i in a; do :; done; : ${c:=1}"
    )
    assert script.writes == ["out", "err", "both", "too", "rw", None]
    assert script.reads == ["in"]
    assert script.assigned == ["A", "i", "c"]
    assert [command.assigned for command in script.commands] == [("B",), (), ()]


PIECES = [
    *("a", "b", "c", "x", "X=1", "if", "then", "fi", "for", "in", "do", "done", "while", "{", "}", "!", "time", "[["),
    *(" ", " ", " ", " ", "\n", ";", "&", "|", "&&", "||", "(", ")", "$(", ")", "`", "'", '"', "\\", "\\\n", "#", "$"),
    *("<", ">", ">>", "<<E", "\nE\n", "<<'E'", "<<<", "<(", ">(", "${", "}", "${x:-", "$((", "))", "$x", "*", "~", "1"),
    *("&>", ">&", "2>", "case", "esac", ";;", "function", "()", "$'", "=", "[", "]", "]]", "-", ",", "{a,b}", "eval"),
]


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs a, b and c, which only say that they ran."""
    place = tmp_path_factory.mktemp("shims")
    for name in "abc":
        (place / name).write_text('#!/bin/bash\nprintf "%s\\n" "${0##*/}" >> "$RAN"\n')
        (place / name).chmod(0o755)
    return place


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=14))
def test_whatever_bash_runs_of_a_text_that_is_read_is_among_its_commands(shims: Path, pieces: list[str]):
    """Against bash itself: what is read is a superset of what happens."""
    text = "".join(pieces)
    try:
        script = read_script(text)
    except Unclear:
        return
    found = {command.words[0] for command in script.commands}
    if None in found or "eval" in found:
        return
    ran = shims / "ran"
    ran.write_text("")
    place = shims / "place"
    place.mkdir(exist_ok=True)
    environment = {"PATH": str(shims), "RAN": str(ran), "HOME": str(place)}
    try:
        subprocess.run(
            ["/bin/bash", "-c", text], env=environment, cwd=place, timeout=1, stdin=subprocess.DEVNULL,
            capture_output=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return
    finally:
        for each in place.iterdir():
            if each.is_file():
                os.unlink(each)
    assert set(ran.read_text().split()) <= found, text
