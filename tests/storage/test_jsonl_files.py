"""The files of a JSONL store: what a crash leaves, what a person reads, who may look, how a directory is found out."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.jsonl import JsonlStorage, open_jsonl
from perdure.backends.jsonl_disk import Disk
from perdure.backends.jsonl_places import key_of, name_of
from perdure.backends.memory import MemoryStorage
from perdure.errors import NotFound, SchemaTooNew, StorageCorrupt, StorageRejected, UsageError
from perdure.records import ConversationId, EntryId, Inbound, SubmissionId, TaskId
from perdure.storage import PutBase, PutDelta, Remove, RemoveEntries, Storage, TakeInbound
from perdure.testing.storage_document_contract import DOC, base, delta
from perdure.testing.storage_fixtures_contract import Line, claimed, conversation, document, entry, submission, task

pytestmark = pytest.mark.anyio

ONE = ConversationId(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def line(path: Path) -> AsyncIterator[Line]:
    storage = await open_jsonl(path, durability="process")
    yield await claimed(storage)
    await storage.close()


def file_of(path: Path, number: int = 1) -> Path:
    return path / "sessions" / "main" / f"{number:06d}.jsonl"


async def opened(path: Path, **how: Any) -> JsonlStorage:
    return await open_jsonl(path, durability="process", **how)


def everything_in(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


def make(path: Path) -> None:
    path.mkdir()


async def state_of(storage: Storage) -> tuple[Any, ...]:
    """What can be read of `main`, all of it that these tests write."""
    return (
        (await storage.head("main"))[1],
        await storage.scan_conversations("main"),
        await storage.scan_entries("main", ONE),
        await storage.newest_head("main", ONE),
        await storage.scan_tasks("main", live=True),
        await storage.scan_tasks("main", live=False),
        await storage.scan_submissions("main", live=True),
        await storage.find_submission("main", ONE, "order-17"),
        await storage.scan_documents("main", "conversation", 1, retired=True),
        await storage.read_document("main", DOC),
        await storage.scan_inbound("main"),
        await storage.scan_inbound("main", taken=True),
    )


#: One commit each: everything that a commit may hold.
STORY: list[list[Any]] = [
    [conversation(1, key="till"), document(5), base(b'{"n":1}')],
    [entry(10), task(11), submission(12, request="order-17")],
    [delta(b'[["n",2]]'), entry(13, head=10, body=b"\xff\n\0")],
    [TakeInbound("a", b'{"answer":1}'), task(11, ended=4.0, body=b"ended")],
    [base(b'{"n":3}', prune=True), entry(14, body="\u2028 ü \U0001f600".encode()), entry(15)],
    [Remove("task", 11), RemoveEntries(ONE, EntryId(14)), Remove("inbound", "a")],
    [],
    [document(5, retired=True, body=b"retired"), conversation(1, key=None, listed=False)],
]


async def tell_the_story(storage: Storage, states: list[Any]) -> None:
    await storage.hand_in("main", Inbound(id="a", kind="input", body="hello", at=1.0))
    line = await claimed(storage)
    states.append(await state_of(storage))
    for writes in STORY:
        await line.commit(*writes)
        states.append(await state_of(storage))


class Forgetful(Disk):
    """Nothing here is about power."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("share", range(4))
@pytest.mark.invariant("J-1", "J-2")
async def test_cut_at_every_byte_a_store_is_what_it_was_after_some_whole_commit_and_goes_on(path: Path, share: int):
    memory, states, disk = MemoryStorage(), [], Forgetful()
    await tell_the_story(memory, states)
    storage = await opened(path, disk=disk)
    await tell_the_story(storage, [])
    await storage.close()
    whole = file_of(path).read_bytes()
    heads: list[int] = []

    for cut in range(share, len(whole) + 4, 4):  # the last ones cut nothing
        file_of(path).write_bytes(whole[:cut])
        storage = await opened(path, disk=disk)
        again = await claimed(storage)
        state = await state_of(storage)
        assert state == states[state[0]]
        heads.append(state[0])
        await again.commit(entry(900))
        await storage.close()

        if cut % 8 == share:
            looking = await opened(path, mode="look")
            assert (await looking.head("main"))[1] == state[0] + 1
            assert await looking.read_entry("main", EntryId(900)) == b"entry 900"
            await looking.close()
        for number in (2, 3):
            file_of(path, number).unlink(missing_ok=True)

    assert heads == sorted(heads)
    assert sorted(set(heads)) == list(range(len(STORY) + 1))


@pytest.mark.slow
async def test_commits_that_were_flushed_together_are_torn_together(line: Line, path: Path):
    await line.commit(entry(10))
    before = len(file_of(path).read_bytes())
    for id in (11, 12, 13):
        last = line.commit(entry(id))
    await last
    await line.storage.close()
    whole = file_of(path).read_bytes()

    found: set[int] = set()
    for cut in range(before, len(whole) + 1, 7):
        file_of(path).write_bytes(whole[:cut])
        storage = await opened(path, mode="look")
        found.add((await storage.head("main"))[1])
        await storage.close()

    assert found - {1, 4} <= {2}, "the first may have been flushed alone, the others never"


async def test_a_torn_end_is_cut_off_once_by_whoever_claims_and_by_nobody_who_looks(line: Line, path: Path):
    await line.commit(entry(10))
    await line.storage.close()
    whole = file_of(path).read_bytes()
    file_of(path).write_bytes(whole + b'{"is":"entry","id":11,"conv')

    looking = await opened(path, mode="look")
    assert await looking.scan_entries("main", ONE) == [b"entry 10"]
    assert file_of(path).stat().st_size > len(whole)
    await looking.close()
    storage = await opened(path)
    again = await claimed(storage)
    await again.commit(entry(11))
    await storage.close()

    assert file_of(path).read_bytes() == whole
    begun = json.loads(file_of(path, 2).read_bytes().splitlines()[0])
    assert begun["after"] == {"file": 1, "bytes": len(whole)}


@pytest.mark.invariant("J-3")
async def test_damage_before_kept_commits_is_no_torn_end(path: Path):
    storage = await open_jsonl(path)
    line = await claimed(storage)
    for id in (10, 11, 12):
        await line.commit(entry(id))
    await storage.close()
    whole = bytearray(file_of(path).read_bytes())
    whole[whole.index(b'"id":10') + 5] ^= 1
    file_of(path).write_bytes(whole)

    storage = await opened(path)
    with pytest.raises(StorageCorrupt, match=r"000001\.jsonl.*damaged.*backup"):
        await storage.claim("main")
    with pytest.raises(StorageCorrupt):
        await storage.head("main")
    await storage.claim("other")
    await storage.close()
    assert file_of(path).read_bytes() == bytes(whole)


async def test_a_missing_file_of_the_middle_is_told(line: Line, path: Path):
    await line.commit(entry(10))
    second = await opened(path)
    await claimed(second, take_over=True)
    await second.close()
    await line.storage.close()
    file_of(path, 1).unlink()

    storage = await opened(path)
    with pytest.raises(StorageCorrupt, match=r"000002\.jsonl does not begin a session"):
        await storage.head("main")
    await storage.close()


# -- what a person reads ------------------------------------------------------------------------


async def test_each_line_is_json_with_the_body_as_it_is_or_in_base64(line: Line, path: Path):
    bodies = [b'{"text":"hello"}', b"[1, 2]", b'{"a": NaN}', b"\xff", b"", b' {"a":1}', b'{"a":\n1}', b"1e999"]
    await line.commit(*[entry(10 + n, body=body) for n, body in enumerate(bodies)])

    lines = [json.loads(each) for each in file_of(path).read_bytes().splitlines()]
    entries = [each for each in lines if each["is"] == "entry"]

    assert [each.get("b64", False) for each in entries] == [False, False, True, True, True, True, True, True]
    assert entries[0]["body"] == {"text": "hello"}
    assert [base64.b64decode(each["body"]) for each in entries[2:]] == bodies[2:]
    assert await line.storage.scan_entries("main", ONE) == bodies[::-1]


async def test_only_lf_ends_a_line(line: Line, path: Path):
    text = json.dumps("a\r\n\u2028\u2029\x85\x0b\x0c", ensure_ascii=False).encode()
    await line.commit(conversation(1, key="\u2028\x85\r"), entry(10, body=text))

    assert await (await beside(path)).scan_entries("main", ONE) == [text]
    assert len(file_of(path).read_bytes().split(b"\n")) == 6


async def beside(path: Path) -> JsonlStorage:
    return await opened(path, mode="look")


@pytest.mark.invariant("J-7")
async def test_everything_is_for_its_owner_only(line: Line, path: Path):
    old = os.umask(0)
    try:
        await line.storage.hand_in("other", Inbound(id="a", kind="input", body=1, at=1.0))
        await line.commit(entry(10))
    finally:
        os.umask(old)

    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in [path, *everything_in(path)]}
    assert {mode for each, mode in modes.items() if each.is_dir()} == {0o700}
    assert {mode for each, mode in modes.items() if each.is_file()} == {0o600}


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["main", "", ".", "..", "../../etc", "a/b", "A", "a", "%41", "a%2Fb", "ü", "a\0b", "x" * 5000, "ü" * 300, " "],
)
async def test_any_key_is_a_plain_name_below_the_store(path: Path, key: str):
    storage = await opened(path)
    await (await claimed(storage, key)).commit(entry(10))
    await storage.close()

    (directory,) = (path / "sessions").iterdir()
    assert len(directory.name) <= 255
    assert directory.name not in (".", "..")
    assert directory.name.lower() == directory.name.lower().strip()
    assert key_of(directory) == key
    storage = await opened(path)
    assert [each.key for each in await storage.sessions()] == [key] * bool(key)  # pages begin behind the empty key
    await storage.close()


def test_keys_that_differ_have_names_that_differ_even_where_case_is_not_told_apart():
    keys = ["a", "A", "%61", "%41", "a b", "a_b", "", "%", "é", "e\u0301", ".a", "%2Ea", "x" * 300, "x" * 301]

    names = [name_of(key).lower() for key in keys]

    assert len(set(names)) == len(keys)


async def test_a_key_that_is_no_text_is_refused(path: Path):
    storage = await opened(path)
    with pytest.raises(StorageRejected, match="no Unicode text"):
        await storage.claim("\ud835")
    await storage.close()


# -- opening ------------------------------------------------------------------------------------


async def test_the_url_of_a_directory_opens_a_session_in_it(path: Path):
    async with perdure.open(f"jsonl:{path}") as session:
        root = await session.root()
        answer: Any = await (await root.submit("hello")).wait()
    assert answer.text

    async with perdure.open(f"jsonl:{path}", mode="read") as looking:
        assert len(await looking.conversations()) == 1
    with pytest.raises(UsageError, match="directory"):
        async with perdure.open("jsonl:"):
            pass


async def test_a_directory_with_something_else_in_it_does_not_become_a_store(tmp_path: Path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StorageCorrupt, match=r"not empty.*name another"):
        await opened(tmp_path)
    assert [each.name for each in everything_in(tmp_path)] == ["letter.txt"]


async def test_a_file_is_no_store(tmp_path: Path):
    (tmp_path / "s.db").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        await opened(tmp_path / "s.db")
    with pytest.raises(UsageError, match="is a file"):
        await opened(tmp_path / "s.db" / "below")


async def test_whoever_looks_makes_nothing(path: Path):
    with pytest.raises(NotFound, match="no store at"):
        await opened(path, mode="look")
    assert everything_in(path.parent) == []

    await (await opened(path)).close()
    before = everything_in(path)
    looking = await opened(path, mode="look")
    assert await looking.head("main") == (0, 0)
    with pytest.raises(UsageError, match="own"):
        await looking.claim("main")
    await looking.close()
    assert everything_in(path) == before


async def test_a_store_that_was_half_made_is_made(path: Path):
    make(path)
    (path / ".store.json.77").write_text('{"per')

    await (await opened(path)).close()

    assert json.loads((path / "store.json").read_text()) == {"perdure": "jsonl", "format": 1}


async def test_a_store_of_a_newer_perdure_is_not_touched(line: Line, path: Path):
    await line.storage.close()
    newer = file_of(path).read_bytes().replace(b'"format":1', b'"format":2')
    file_of(path).write_bytes(newer)
    storage = await opened(path)
    with pytest.raises(SchemaTooNew, match=r"format 2.*newer"):
        await storage.claim("main")
    await storage.close()

    (path / "store.json").write_text('{"perdure":"jsonl","format":2}')
    with pytest.raises(SchemaTooNew):
        await opened(path)
    assert file_of(path).read_bytes() == newer


async def test_a_copy_of_the_directory_is_a_store(line: Line, path: Path, tmp_path: Path):
    await line.commit(entry(10))
    shutil.copytree(path, tmp_path / "copy")

    storage = await opened(tmp_path / "copy")
    again = await claimed(storage)
    assert await again.commit(entry(11)) == 2
    await storage.close()
    assert await line.commit(entry(12)) == 2
    assert await line.storage.read_entry("main", EntryId(11)) is None


async def test_ids_of_every_table_are_found_again(line: Line, path: Path):
    await line.commit(task(11), submission(12), PutBase(DOC, False, b"1"), PutDelta(DOC, b"2"))
    looking = await beside(path)

    assert await looking.read_tasks("main", [TaskId(11)]) == [b"task 11"]
    assert await looking.read_submission("main", SubmissionId(12)) == b"submission 12"
    await looking.close()
