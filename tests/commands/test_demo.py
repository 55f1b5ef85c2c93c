"""`perdure demo`: an agent that is really killed, and a verifier that finds what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.commands.demo.verify import verify
from perdure.testing.processes import Child, run_child

pytestmark = pytest.mark.timeout(200)  # a dozen processes start, wherever this runs

NOBODY = 65534
PATIENCE = 150.0
NAMED = ("admission", "model_stream", "before_effect", "in_effect", "after_effect")
SETPRIV = shutil.which("setpriv")
FIELDS = ["kills", "accepted", "answered", "lost", "repeated_unsafe", "transcript_valid", "by_point"]
DEMO = [sys.executable, "-m", "perdure", "demo"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a demo that went well."""
    directory = tmp_path_factory.mktemp("demo") / "kept"
    done = run_child([*DEMO, "--kills", "5", "--seed", "1", "--json", "--keep", str(directory)], timeout=PATIENCE)
    assert done.code == 0, done.stderr
    (directory / "stdout").write_text(done.stdout)
    (directory / "stderr").write_text(done.stderr)
    assert done.left == ()
    return directory


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    """The same, to be tampered with."""
    return Path(shutil.copytree(kept, tmp_path / "copy"))


# -- a run ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_agent_that_is_killed_at_each_point_loses_nothing_and_repeats_nothing(kept: Path) -> None:
    *before, last = (kept / "stdout").read_text().splitlines()

    result = json.loads(last)

    assert before == []
    assert list(result) == FIELDS
    assert (result["kills"], result["lost"], result["repeated_unsafe"], result["transcript_valid"]) == (5, 0, 0, True)
    assert result["accepted"] == result["answered"] > 0
    assert result["by_point"] == {**dict.fromkeys(NAMED, 1), "anywhere": 0}


@pytest.mark.slow
def test_the_timeline_shows_kills_and_starts_effects_and_entries(kept: Path) -> None:
    lines = (kept / "stderr").read_text().splitlines()

    shown = [line.split()[2] for line in lines if len(line.split()) > 2 and line.split()[1].startswith("#")]

    assert shown.count("KILL") == 5
    assert shown.count("start") == 6
    assert {"accepted", "again", "entry", "effect", "answer"} <= set(shown)
    assert shown[-1] == "close"


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0, reason="only root can become another user; the other tests are unprivileged already"
)
@pytest.mark.skipif(SETPRIV is None, reason="needs setpriv, to become another user who can still reach this Python")
def test_anybody_may_run_it() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, NOBODY, NOBODY)
        nobody = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        demo = [*DEMO, "--kills", "5", "--seed", "3", "--json"]

        done = run_child(
            [str(SETPRIV), *nobody, *may_read, *demo], {"TMPDIR": directory}, cwd=directory, timeout=PATIENCE
        )

        assert done.code == 0, done.stderr
        assert json.loads(done.lines[-1])["lost"] == 0
        assert os.listdir(directory) == []


@pytest.mark.slow
def test_a_payment_that_happens_twice_makes_it_exit_with_1(tmp_path: Path) -> None:
    ledger = tmp_path / "kept" / "payments.jsonl"
    with Child([*DEMO, "--kills", "5", "--seed", "2", "--keep", str(ledger.parent)]) as child:
        while not (ledger.exists() and ledger.read_text().endswith("\n")):
            child.read_line()

        with ledger.open("a") as file:
            file.write(ledger.read_text().splitlines(keepends=True)[0])
        done = child.wait(PATIENCE)

    assert done.code == 1
    assert "WERE REPEATED" in done.stdout
    assert "was made 2 times" in done.stdout


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--kills", "4"], "--kills 4: give a number from 5"),
        (["--kills", "many"], "'many'"),
        (["--kills", "5", "--store", "memory:"], "--store 'memory:'"),
        (["--kills", "5", "--store", "/nowhere/store.db"], "/nowhere/store.db"),
        (["--kills", "5", "--keep", "."], "--keep . is not empty"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_what_cannot_be_run_is_said_in_one_line(arguments: list[str], named: str, tmp_path: Path) -> None:
    (tmp_path / "something").touch()

    done = subprocess.run([*DEMO, *arguments], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


# -- the verifier --------------------------------------------------------------------------------

Json = dict[str, Any]
Tamper = Callable[[Path], None]


@contextmanager
def database(directory: Path) -> Generator[apsw.Connection]:
    connection = apsw.Connection(str(directory / "store.db"))
    yield connection
    connection.close()


def row(table: str, change: Callable[[Json], Any], where: Callable[[Json], bool] = lambda body: True) -> Tamper:
    """Change the first row that fits. `change` alters its body, or returns False: then the row goes."""

    def tamper(directory: Path) -> None:
        with database(directory) as store:
            rows: list[Any] = store.execute(f"SELECT id, body FROM {table} ORDER BY id").fetchall()
            id, body = next((id, found) for id, raw in rows if where(found := json.loads(raw)))
            if change(body) is False:
                store.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
            else:
                store.execute(f"UPDATE {table} SET body = ? WHERE id = ?", (json.dumps(body).encode(), id))

    return tamper


def doubled(where: Callable[[Json], bool]) -> Tamper:
    """The first entry that fits is there again, as the newest one."""

    def tamper(directory: Path) -> None:
        with database(directory) as store:
            rows: list[Any] = store.execute("SELECT id, conversation, body FROM entry ORDER BY id").fetchall()
            conversation, body = next((at, found) for _, at, raw in rows if where(found := json.loads(raw)))
            last: Json = json.loads(rows[-1][2])
            again = json.dumps({**body, "id": last["id"] + 1, "seq": last["seq"]})
            store.execute("INSERT INTO entry VALUES (?, ?, NULL, ?)", (rows[-1][0] + 1, conversation, again.encode()))

    return tamper


def lines(name: str, change: Callable[[list[str]], list[str]]) -> Tamper:
    """Change the lines of a file."""

    def tamper(directory: Path) -> None:
        path = directory / name
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return tamper


def unlinked(pattern: str) -> Tamper:
    """Files are gone."""

    def tamper(directory: Path) -> None:
        for path in directory.glob(pattern):
            path.unlink()

    return tamper


def session_left_open(directory: Path) -> None:
    with database(directory) as store:
        store.execute("UPDATE session SET open = 1")


def is_result(entry: Json) -> bool:
    return entry["kind"] == "perdure.tool_result"


def is_input(entry: Json) -> bool:
    return entry["kind"] == "perdure.user"


def is_finished(entry: Json) -> bool:
    return entry["kind"] == "perdure.assistant" and entry["messages"][0].get("stop") not in ("interrupted", "error")


def is_calling(entry: Json) -> bool:
    return is_finished(entry) and any(part["type"] == "call" for part in entry["messages"][0]["parts"])


def is_answer(entry: Json) -> bool:
    return is_finished(entry) and not is_calling(entry)


def gone(body: Json) -> bool:
    return False


LOST: dict[str, Tamper] = {
    "a submission is gone": row("submission", gone),
    "a submission is not settled": row("submission", lambda body: body.update(state={"type": "queued"})),
    "a submission is not answered": row(
        "submission", lambda body: body.update(state={"type": "unanswered", "reason": "aborted"})
    ),
    "an answer is gone": row("entry", gone, is_answer),
    "an answer is empty": row("entry", lambda body: body["messages"][0].update(parts=[]), is_answer),
    "an answer is of another submission": row(
        "submission", lambda body: body["state"].update(answer=body["state"]["entry"])
    ),
    "it was accepted under another id": lines(
        "accepted.jsonl", lambda all: [all[0].replace("errand-", "x-"), *all[1:]]
    ),
}
REPEATED: dict[str, Tamper] = {
    "a payment is there twice": lines("payments.jsonl", lambda all: [*all, all[0]]),
    "a command was run twice": lines("work/dispatched.log", lambda all: [*all, all[0]]),
}
INVALID: dict[str, tuple[Tamper, str]] = {
    "a result is gone": (row("entry", gone, is_result), "has no result"),
    "a result is there twice": (doubled(is_result), "which waits for none"),
    "a result is of another tool": (
        row("entry", lambda body: body["messages"][0].update(name="read"), is_result),
        "which waits for none",
    ),
    "a result is empty": (row("entry", lambda body: body["messages"][0].update(text=" "), is_result), "is empty"),
    "a call is gone": (row("entry", gone, is_calling), "which waits for none"),
    "an input is there twice": (doubled(is_input), "is in the transcript 2 times"),
    "an input is gone": (row("entry", gone, is_input), "is in the transcript 0 times"),
    "nobody asked for it": (lines("accepted.jsonl", lambda all: all[1:]), "which was never accepted"),
    "it went to another conversation": (
        lines("accepted.jsonl", lambda all: [all[0].replace('"market"', '"shop"'), *all[1:]]),
        "was meant for conversation 'shop'",
    ),
    "a task is live": (row("task", lambda body: body.update(state={"type": "running"})), "is running"),
    "a row is not its own": (row("task", lambda body: body.update(id=1)), "not its own"),
    "the session is open": (session_left_open, "was not closed"),
    "a payment has no intent": (
        lines("payments.jsonl", lambda all: [*all, '{"key":"main/99999","amount":1,"to":"Ann"}\n']),
        "has no intent",
    ),
    "a payment is of another amount": (
        lines("payments.jsonl", lambda all: [all[0].replace('"amount":', '"amount":9'), *all[1:]]),
        "has no intent",
    ),
    "payments that succeeded are gone": (lines("payments.jsonl", lambda all: []), "did not happen"),
    "a payment is half there": (lines("payments.jsonl", lambda all: [*all, '{"key":']), "was not written whole"),
    "files that were written are gone": (unlinked("work/errand-*"), "did not happen"),
    "commands that ran did not": (unlinked("work/dispatched.log"), "did not happen"),
}


def judged(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    code = verify([str(directory)])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


@pytest.mark.slow
def test_the_verifier_finds_nothing_wrong_where_nothing_is(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict, err = judged(copy, capsys)

    assert (code, err, verdict["problems"]) == (0, "", [])


@pytest.mark.slow
@pytest.mark.parametrize("fault", LOST)
def test_the_verifier_finds_what_was_lost(fault: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOST[fault](copy)

    code, verdict, err = judged(copy, capsys)

    assert code == 1
    assert verdict["lost"] >= 1
    assert verdict["answered"] == verdict["accepted"] - verdict["lost"]
    assert "was accepted" in err


@pytest.mark.slow
@pytest.mark.parametrize("fault", REPEATED)
def test_the_verifier_finds_what_was_repeated(fault: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    REPEATED[fault](copy)

    code, verdict, err = judged(copy, capsys)

    assert (code, verdict["repeated_unsafe"], verdict["lost"]) == (1, 1, 0)
    assert "2 times" in err


@pytest.mark.slow
@pytest.mark.parametrize("fault", INVALID)
def test_the_verifier_finds_what_is_invalid(fault: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tamper, message = INVALID[fault]
    tamper(copy)

    code, verdict, err = judged(copy, capsys)

    assert (code, verdict["transcript_valid"]) == (1, False)
    assert message in err


@pytest.mark.slow
def test_the_verifier_is_a_process_that_exits_with_1(copy: Path) -> None:
    REPEATED["a payment is there twice"](copy)

    done = subprocess.run(
        [sys.executable, "-m", "perdure.commands.demo.verify", str(copy)], capture_output=True, text=True
    )

    assert done.returncode == 1
    assert json.loads(done.stdout)["repeated_unsafe"] == 1


def test_the_verifier_says_when_there_is_nothing_to_judge_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.db").write_text("nothing of the kind" * 100)

    assert verify([str(tmp_path)]) == 2
    assert verify([str(tmp_path), "--store", str(tmp_path / "damaged.db")]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no store in" in err
    assert "cannot be read" in err
