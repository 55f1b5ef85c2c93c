"""Laws of the rows: conversations, entries, tasks, submissions and inbound items, and of every scan over them."""

from __future__ import annotations

import asyncio

from perdure.records import ConversationId, EntryId, Inbound, Seq, SubmissionId, TaskId, decode_inbound, encode
from perdure.storage import Remove, RemoveEntries, Storage, TakeInbound
from perdure.testing.storage_fixtures_contract import (
    Beside,
    Line,
    StorageLaws,
    claimed,
    conversation,
    entry,
    submission,
    task,
)

ONE, TWO = ConversationId(1), ConversationId(2)


class TranscriptLaws(StorageLaws):
    """Conversations and entries."""

    async def test_a_conversation_is_found_by_id_and_by_key(self, storage: Storage, main: Line) -> None:
        await main.commit(conversation(1), conversation(2, key="till"))

        assert await storage.read_conversation("main", TWO) == b"conversation 2"
        assert await storage.find_conversation("main", "till") == b"conversation 2"
        assert await storage.find_conversation("main", "Till") is None
        assert await storage.read_conversation("main", ConversationId(3)) is None

    async def test_putting_a_conversation_again_replaces_it(self, storage: Storage, main: Line) -> None:
        await main.commit(conversation(2, key="till"))
        await main.commit(conversation(2, key="shop", body=b"new"))

        assert await storage.read_conversation("main", TWO) == b"new"
        assert await storage.find_conversation("main", "shop") == b"new"
        assert await storage.find_conversation("main", "till") is None

    async def test_a_deleted_conversation_frees_its_key_and_keeps_its_row(self, storage: Storage, main: Line) -> None:
        await main.commit(conversation(2, key="till"))
        await main.commit(conversation(2, key=None, listed=False, body=b"tombstone"))
        await main.commit(conversation(3, key="till"))

        assert await storage.find_conversation("main", "till") == b"conversation 3"
        assert await storage.read_conversation("main", TWO) == b"tombstone"
        assert await storage.scan_conversations("main") == [b"conversation 3"]

    async def test_conversations_are_listed_newest_first_a_page_at_a_time(self, storage: Storage, main: Line) -> None:
        await main.commit(*[conversation(id) for id in (5, 1, 9, 7, 3)], conversation(8, listed=False))

        assert await storage.scan_conversations("main") == [b"conversation %d" % id for id in (9, 7, 5, 3, 1)]
        assert await storage.scan_conversations("main", limit=2) == [b"conversation 9", b"conversation 7"]
        assert await storage.scan_conversations("main", before=7, limit=2) == [b"conversation 5", b"conversation 3"]
        assert await storage.scan_conversations("main", before=1) == []

    async def test_conversations_are_found_by_the_tasks_that_own_them(self, storage: Storage, main: Line) -> None:
        await main.commit(
            conversation(1), conversation(9, owner=4), conversation(5, owner=4, listed=False), conversation(7, owner=6)
        )

        assert await storage.owned_conversations("main", [TaskId(4)]) == [b"conversation 5", b"conversation 9"]
        assert await storage.owned_conversations("main", [TaskId(6), TaskId(4), TaskId(8)]) == [
            b"conversation 5",
            b"conversation 7",
            b"conversation 9",
        ]
        assert await storage.owned_conversations("main", []) == []

    async def test_forks_are_found_by_their_parent_tombstones_too(self, storage: Storage, main: Line) -> None:
        await main.commit(
            conversation(1),
            conversation(7, parent=1),
            conversation(5, parent=1, listed=False),
            conversation(9, parent=7),
        )

        assert await storage.forks_of("main", ONE) == [b"conversation 5", b"conversation 7"]
        assert await storage.forks_of("main", ConversationId(9)) == []

    async def test_a_removed_conversation_is_gone_with_its_key(self, storage: Storage, main: Line) -> None:
        await main.commit(conversation(2, key="till", owner=4, parent=1))
        await main.commit(Remove("conversation", 2), Remove("conversation", 77))

        assert await storage.read_conversation("main", TWO) is None
        assert await storage.find_conversation("main", "till") is None
        assert await storage.scan_conversations("main") == []
        assert await storage.owned_conversations("main", [TaskId(4)]) == []
        assert await storage.forks_of("main", ONE) == []

    async def test_entries_are_scanned_newest_first_a_page_at_a_time(self, storage: Storage, main: Line) -> None:
        await main.commit(*[entry(id) for id in (10, 11, 12)], entry(13, of=2))
        await main.commit(*[entry(id) for id in (14, 15)])

        assert await storage.scan_entries("main", ONE) == [b"entry %d" % id for id in (15, 14, 12, 11, 10)]
        assert await storage.scan_entries("main", ONE, limit=2) == [b"entry 15", b"entry 14"]
        assert await storage.scan_entries("main", ONE, before=14, limit=2) == [b"entry 12", b"entry 11"]
        assert await storage.scan_entries("main", ONE, before=13) == [b"entry 12", b"entry 11", b"entry 10"]
        assert await storage.scan_entries("main", ONE, before=10) == []
        assert await storage.scan_entries("main", TWO) == [b"entry 13"]
        assert await storage.scan_entries("main", ConversationId(3)) == []

    async def test_the_newest_entry_with_a_head_is_found(self, storage: Storage, main: Line) -> None:
        await main.commit(
            entry(10), entry(11, head=10), entry(12), entry(13, head=13), entry(14), entry(15, of=2, head=15)
        )

        assert await storage.newest_head("main", ONE) == b"entry 13"
        assert await storage.newest_head("main", ONE, before=14) == b"entry 13"
        assert await storage.newest_head("main", ONE, before=13) == b"entry 11"
        assert await storage.newest_head("main", ONE, before=11) is None
        assert await storage.newest_head("main", ConversationId(3)) is None

    async def test_entries_are_counted_by_conversation(self, storage: Storage, main: Line) -> None:
        await main.commit(*[entry(id) for id in (10, 11, 12)], entry(13, of=2))

        counted = dict(await storage.count_entries("main", [ONE, TWO, ConversationId(3)]))
        assert (counted[ONE], counted[TWO], counted.get(ConversationId(3), 0)) == (3, 1, 0)
        assert await storage.count_entries("main", []) == []
        await main.commit(RemoveEntries(ONE, EntryId(10)))
        assert dict(await storage.count_entries("main", [ONE])) == {ONE: 1}

    async def test_entries_after_an_id_can_be_removed(self, storage: Storage, main: Line) -> None:
        await main.commit(*[entry(id, head=id) for id in (10, 11, 12)], entry(13, of=2, head=13))
        await main.commit(RemoveEntries(ONE, EntryId(10)), RemoveEntries(ConversationId(9), EntryId(0)))

        assert await storage.scan_entries("main", ONE) == [b"entry 10"]
        assert await storage.read_entry("main", EntryId(11)) is None
        assert await storage.newest_head("main", ONE) == b"entry 10"
        assert await storage.scan_entries("main", TWO) == [b"entry 13"]

    async def test_writes_apply_in_their_order_removals_too(self, storage: Storage, main: Line) -> None:
        await main.commit(entry(10), RemoveEntries(ONE, EntryId(0)), entry(11), task(12), Remove("task", 12))

        assert await storage.scan_entries("main", ONE) == [b"entry 11"]
        assert await storage.scan_tasks("main", live=True) == []


class WorkLaws(StorageLaws):
    """Tasks and submissions."""

    async def test_tasks_are_read_by_id_in_order_of_their_ids(self, storage: Storage, main: Line) -> None:
        await main.commit(*[task(id) for id in (4, 2, 3)])

        wanted = [TaskId(id) for id in (3, 9, 2, 3)]
        assert await storage.read_tasks("main", wanted) == [b"task 2", b"task 3"]
        assert await storage.read_tasks("main", []) == []
        assert await storage.read_tasks("main", [TaskId(id) for id in range(1, 5000)]) == [
            b"task 2",
            b"task 3",
            b"task 4",
        ]

    async def test_live_tasks_are_scanned_by_id_a_page_at_a_time(self, storage: Storage, main: Line) -> None:
        await main.commit(*[task(id) for id in (8, 2, 6, 4)], task(5, ended=1.0))

        assert await storage.scan_tasks("main", live=True) == [b"task %d" % id for id in (2, 4, 6, 8)]
        assert await storage.scan_tasks("main", live=True, limit=2) == [b"task 2", b"task 4"]
        assert await storage.scan_tasks("main", live=True, after=4, limit=1) == [b"task 6"]
        assert await storage.scan_tasks("main", live=True, after=8) == []

    async def test_a_task_that_ended_is_no_longer_live(self, storage: Storage, main: Line) -> None:
        await main.commit(task(2), task(3))
        await main.commit(task(2, ended=9.5, body=b"ended"))

        assert await storage.scan_tasks("main", live=True) == [b"task 3"]
        assert await storage.scan_tasks("main", live=False) == [b"ended"]
        assert await storage.read_tasks("main", [TaskId(2)]) == [b"ended"]

    async def test_ended_tasks_are_found_by_when_they_ended(self, storage: Storage, main: Line) -> None:
        await main.commit(task(2, ended=30.0), task(3, ended=10.0), task(4, ended=20.0), task(5))

        found = await storage.scan_tasks("main", live=False, ended_before=30.0)

        assert found == [b"task 3", b"task 4"]
        assert await storage.scan_tasks("main", live=False, ended_before=30.0, after=3) == [b"task 4"]
        assert await storage.scan_tasks("main", live=False, limit=1) == [b"task 2"]

    async def test_a_removed_task_is_gone(self, storage: Storage, main: Line) -> None:
        await main.commit(task(2), task(3, ended=1.0), task(4))
        await main.commit(Remove("task", 2), Remove("task", 3), Remove("task", 99))

        assert await storage.scan_tasks("main", live=True) == [b"task 4"]
        assert await storage.scan_tasks("main", live=False) == []

    async def test_a_submission_is_found_by_id_and_by_request(self, storage: Storage, main: Line) -> None:
        await main.commit(
            submission(2, of=1, request="r"), submission(3, of=2, request="r"), submission(4), submission(5)
        )
        await main.commit(submission(2, of=1, request="r", ended=1.0, body=b"done"))

        assert await storage.read_submission("main", SubmissionId(4)) == b"submission 4"
        assert await storage.read_submission("main", SubmissionId(9)) is None
        assert await storage.find_submission("main", ONE, "r") == b"done"
        assert await storage.find_submission("main", TWO, "r") == b"submission 3"
        assert await storage.find_submission("main", TWO, "R") is None

    async def test_submissions_are_scanned_by_id_of_all_or_one_conversation(self, storage: Storage, main: Line) -> None:
        await main.commit(*[submission(id, of=1 + id % 2) for id in (7, 2, 5, 4, 3)], submission(6, ended=1.0))

        assert await storage.scan_submissions("main", live=True) == [b"submission %d" % id for id in (2, 3, 4, 5, 7)]
        assert await storage.scan_submissions("main", live=True, after=3, limit=2) == [b"submission 4", b"submission 5"]
        assert await storage.scan_submissions("main", live=True, conversation=ONE) == [b"submission 2", b"submission 4"]
        assert await storage.scan_submissions("main", live=True, conversation=TWO, after=3, limit=1) == [
            b"submission 5"
        ]
        assert await storage.scan_submissions("main", live=False, conversation=ONE) == [b"submission 6"]

    async def test_settled_submissions_are_found_by_when_they_ended(self, storage: Storage, main: Line) -> None:
        await main.commit(submission(2, ended=30.0), submission(3, of=2, ended=10.0), submission(4, ended=20.0))

        assert await storage.scan_submissions("main", live=False, ended_before=30.0) == [
            b"submission 3",
            b"submission 4",
        ]
        assert await storage.scan_submissions("main", live=False, conversation=ONE, ended_before=30.0) == [
            b"submission 4"
        ]

    async def test_a_removed_submission_is_gone_with_its_request_id(self, storage: Storage, main: Line) -> None:
        await main.commit(submission(2, request="r"))
        await main.commit(Remove("submission", 2))
        await main.commit(submission(3, request="r"))

        assert await storage.find_submission("main", ONE, "r") == b"submission 3"
        assert await storage.scan_submissions("main", live=True) == [b"submission 3"]


class InboundLaws(StorageLaws):
    """Items that anyone hands in (K1a)."""

    async def test_an_item_handed_in_is_there_for_everyone(self, main: Line, beside: Beside) -> None:
        given = item("a")
        kept = await (await beside()).hand_in("main", given)

        assert kept == given
        assert decode_inbound(await main.storage.read_inbound("main", "a") or b"") == given
        assert await main.storage.read_inbound("main", "b") is None

    async def test_an_item_can_be_handed_in_to_a_session_that_nobody_claimed(self, storage: Storage) -> None:
        await storage.hand_in("later", item("a"))

        opened = await storage.claim("later")

        assert (opened.claim.epoch, opened.head, opened.clean) == (1, 0, True)
        assert len(await storage.scan_inbound("later")) == 1

    async def test_handing_in_an_id_again_gives_the_first_item(self, storage: Storage, beside: Beside) -> None:
        first = await storage.hand_in("main", item("a", body="first"))
        again = await (await beside()).hand_in("main", item("a", body="second"))

        assert again == first
        assert again.body == "first"
        assert len(await storage.scan_inbound("main")) == 1

    async def test_an_id_handed_in_twice_at_once_is_one_item(self, storage: Storage, beside: Beside) -> None:
        second = await beside()

        results = await asyncio.gather(
            storage.hand_in("main", item("a", body="one")), second.hand_in("main", item("a", body="two"))
        )

        assert results[0] == results[1]
        assert len(await storage.scan_inbound("main")) == 1

    async def test_an_id_is_known_in_its_session_only(self, storage: Storage) -> None:
        await storage.hand_in("main", item("a", body="main"))
        other = await storage.hand_in("other", item("a", body="other"))

        assert other.body == "other"

    async def test_the_commit_that_takes_an_item_writes_its_answer(self, storage: Storage, main: Line) -> None:
        await storage.hand_in("main", item("a"))
        await storage.hand_in("main", item("b"))
        answered = item("a", taken=1, answer="done")

        await main.commit(TakeInbound("a", encode(answered)))

        assert decode_inbound(await storage.read_inbound("main", "a") or b"") == answered
        assert await storage.hand_in("main", item("a", body="again")) == answered
        assert [decode_inbound(each).id for each in await storage.scan_inbound("main")] == ["b"]
        assert [decode_inbound(each).id for each in await storage.scan_inbound("main", taken=True)] == ["a"]

    async def test_items_are_scanned_by_id_a_page_at_a_time(self, storage: Storage) -> None:
        for id in ("c", "a", "d", "b"):
            await storage.hand_in("main", item(id))

        assert [decode_inbound(each).id for each in await storage.scan_inbound("main")] == ["a", "b", "c", "d"]
        assert [decode_inbound(each).id for each in await storage.scan_inbound("main", after="a", limit=2)] == [
            "b",
            "c",
        ]

    async def test_a_removed_item_is_gone(self, storage: Storage, main: Line) -> None:
        await storage.hand_in("main", item("a"))
        await main.commit(TakeInbound("a", encode(item("a", taken=1))))
        await main.commit(Remove("inbound", "a"), Remove("inbound", "zzz"))

        assert await storage.read_inbound("main", "a") is None
        assert await storage.scan_inbound("main", taken=True) == []

    async def test_handing_in_beside_commits_disturbs_neither(self, storage: Storage) -> None:
        line = await claimed(storage)

        handing_in: list[asyncio.Future[Inbound]] = []
        commits: list[asyncio.Future[Seq]] = []
        turns = 3 if self.reopens else 10
        for number in range(turns):
            commits.append(line.commit(entry(10 + number)))
            handing_in.append(asyncio.ensure_future(storage.hand_in("main", item(f"i{number}"))))
            await asyncio.sleep(0)
        await asyncio.gather(*handing_in)

        assert await asyncio.gather(*commits) == list(range(1, turns + 1))
        assert len(await storage.scan_inbound("main")) == turns


def item(id: str, *, body: object = "hello", taken: int | None = None, answer: object = None) -> Inbound:
    return Inbound(id=id, kind="input", body=body, at=1.5, taken=None if taken is None else Seq(taken), answer=answer)
