"""Laws of `commit`: whole or not at all, in call order, by the right claim, and of what comes back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from perdure.errors import Fenced, StorageRejected
from perdure.records import ConversationId, EntryId
from perdure.storage import Claim, Storage, Write
from perdure.testing.storage_fixtures_contract import (
    Beside,
    Line,
    StorageLaws,
    claimed,
    commit_id_of,
    conversation,
    document,
    entry,
    submission,
    task,
)


class CommitLaws(StorageLaws):
    """What a commit promises."""

    async def test_a_commit_can_be_read_once_its_future_has_resolved(self, storage: Storage, main: Line) -> None:
        seq = await main.commit(entry(7, body=b"hello"))

        assert seq == 1
        assert await storage.read_entry("main", EntryId(7)) == b"hello"
        assert (await storage.head("main"))[1] == 1

    async def test_a_commit_keeps_the_counter_for_the_next_owner(self, main: Line, beside: Beside) -> None:
        await main.commit(entry(7), next_id=8)
        await main.commit(entry(8), next_id=11)

        opened = (await claimed(await beside(), take_over=True)).opened

        assert (opened.head, opened.next_id) == (2, 11)

    async def test_a_commit_of_nothing_is_a_commit(self, storage: Storage, main: Line) -> None:
        await main.commit()

        assert (await storage.head("main"))[1] == 1

    @pytest.mark.parametrize(
        "clash",
        [
            conversation(20, key="till"),
            submission(20, of=1, request="order-17"),
            document(20, "todo", key="a"),
            entry(10),
        ],
        ids=lambda write: type(write).__name__,
    )
    async def test_a_refused_batch_leaves_nothing(self, storage: Storage, main: Line, clash: Write) -> None:
        await main.commit(
            conversation(1, key="till"),
            submission(2, of=1, request="order-17"),
            document(3, "todo", key="a"),
            entry(10),
        )

        with pytest.raises(StorageRejected):
            await main.at(2, entry(18), task(19), clash, entry(21))

        assert await storage.scan_entries("main", ConversationId(1)) == [b"entry 10"]
        assert await storage.scan_tasks("main", live=True) == []
        assert (await storage.head("main"))[1] == 1
        assert await main.at(2, entry(30)) == 2

    async def test_a_batch_may_pass_on_a_name_that_an_earlier_write_of_it_gave_up(
        self, storage: Storage, main: Line
    ) -> None:
        await main.commit(conversation(1, key="till"), document(2, "todo"))

        await main.commit(
            conversation(1, key=None, listed=False),
            conversation(3, key="till"),
            document(2, "todo", retired=True),
            document(4, "todo"),
        )

        assert await storage.find_conversation("main", "till") == b"conversation 3"
        assert await storage.find_document("main", "conversation", 1, "todo", "") == b"document 4"

    async def test_batches_are_admitted_in_the_order_of_the_calls(self, storage: Storage, main: Line) -> None:
        admitted = [main.commit(entry(id)) for id in range(10, 20)]

        assert await admitted[-1] == 10
        assert [await each for each in admitted] == list(range(1, 11))
        assert await storage.scan_entries("main", ConversationId(1), limit=3) == [b"entry 19", b"entry 18", b"entry 17"]

    async def test_an_admitted_batch_needs_nobody_to_wait_for_it(self, main: Line, beside: Beside) -> None:
        main.commit(entry(10))
        main.commit(entry(11))

        await main.storage.close()

        assert await (await beside()).scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]

    async def test_cancelling_the_wait_takes_nothing_back(self, storage: Storage, main: Line) -> None:
        async def wait() -> None:
            await main.commit(entry(10))

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

        await main.commit(entry(11))
        assert await storage.read_entry("main", EntryId(10)) == b"entry 10"

    @pytest.mark.parametrize("seq", [0, 1, 3, 99])
    async def test_a_batch_that_does_not_follow_the_head_is_refused(
        self, storage: Storage, main: Line, seq: int
    ) -> None:
        await main.commit(entry(10))

        with pytest.raises(StorageRejected, match=r"head 1\b"):
            await main.at(seq, entry(11))

        assert await storage.read_entry("main", EntryId(11)) is None
        assert await main.at(2, entry(12)) == 2

    async def test_what_stands_behind_a_refused_batch_is_refused(self, storage: Storage, main: Line) -> None:
        await main.commit(conversation(1, key="till"))
        admitted = [main.at(2, entry(10), conversation(2, key="till")), main.at(3, entry(11)), main.at(4, entry(12))]

        results = await asyncio.gather(*admitted, return_exceptions=True)

        assert [type(each) for each in results] == [StorageRejected] * 3
        assert await storage.scan_entries("main", ConversationId(1)) == []
        assert await main.at(2, entry(13)) == 2

    async def test_other_sessions_go_on_beside_a_refused_batch(self, storage: Storage, main: Line) -> None:
        other = await claimed(storage, "other")
        await main.commit(conversation(1, key="till"))
        before = other.commit(entry(10))
        refused = main.at(2, entry(10), conversation(2, key="till"))
        stale = main.at(2, entry(11), claim=Claim("main", 0))
        after = other.commit(entry(11))

        results = await asyncio.gather(before, refused, stale, after, return_exceptions=True)

        assert results[0] == 1
        assert results[3] == 2
        assert isinstance(results[1], StorageRejected)
        assert isinstance(results[2], Fenced)
        assert await storage.scan_entries("other", ConversationId(1)) == [b"entry 11", b"entry 10"]
        assert await storage.scan_entries("main", ConversationId(1)) == []

    async def test_sessions_do_not_see_each_other(self, storage: Storage, main: Line) -> None:
        other = await claimed(storage, "other")
        for line in (main, other):
            name = line.session.encode()
            await line.commit(
                conversation(1, key="till", body=name),
                entry(2, body=name),
                task(3, body=name),
                submission(4, request="r", body=name),
                document(5, body=name),
            )

        for name in ("main", "other"):
            assert await storage.find_conversation(name, "till") == name.encode()
            assert await storage.scan_conversations(name) == [name.encode()]
            assert await storage.scan_entries(name, ConversationId(1)) == [name.encode()]
            assert await storage.scan_tasks(name, live=True) == [name.encode()]
            assert await storage.scan_submissions(name, live=True) == [name.encode()]
            assert await storage.scan_documents(name, "conversation", 1) == [name.encode()]

    async def test_many_sessions_commit_at_once_each_in_its_order(self, storage: Storage) -> None:
        turns = 3 if self.reopens else 12
        lines = [await claimed(storage, f"s{number}") for number in range(8)]

        admitted = [line.commit(entry(10 + turn)) for turn in range(turns) for line in lines]
        await asyncio.gather(*admitted)

        for line in lines:
            assert (await storage.head(line.session))[1] == turns
            found = await storage.scan_entries(line.session, ConversationId(1))
            assert found == [b"entry %d" % id for id in range(9 + turns, 9, -1)]

    async def test_a_claim_of_an_earlier_epoch_is_fenced(self, storage: Storage, main: Line) -> None:
        for epoch in (main.claim.epoch - 1, main.claim.epoch + 7):
            with pytest.raises(Fenced, match=rf"{epoch}\b"):
                await main.at(1, entry(10), claim=Claim("main", epoch))

        assert await storage.read_entry("main", EntryId(10)) is None

    async def test_a_session_that_nobody_claimed_takes_no_commit(self, storage: Storage, main: Line) -> None:
        with pytest.raises(Fenced):
            await main.at(1, entry(10), claim=Claim("nobody", 1))

        assert await storage.head("nobody") == (0, 0)

    async def test_a_commit_is_found_by_its_id(self, storage: Storage, main: Line) -> None:
        await claimed(storage, "other")
        await main.commit(entry(10))
        with pytest.raises(StorageRejected):
            await main.at(9, entry(11))

        assert await storage.find_commit("main", commit_id_of(main.claim, 1)) == 1
        assert await storage.find_commit("main", commit_id_of(main.claim, 9)) is None
        assert await storage.find_commit("other", commit_id_of(main.claim, 1)) is None
        assert await storage.find_commit("nobody", commit_id_of(main.claim, 1)) is None

    async def test_the_commit_ids_of_the_last_two_epochs_are_kept(
        self, storage: Storage, main: Line, beside: Beside
    ) -> None:
        """K47: whoever lost an acknowledgement may itself be restarted before it asks."""
        if self.reopens:
            pytest.skip("every reopening is an epoch")
        await main.commit(entry(10))
        second = await claimed(await beside(), take_over=True)
        await second.commit(entry(11))

        found = await claimed(await beside(), take_over=True)

        assert await found.storage.find_commit("main", commit_id_of(main.claim, 1)) == 1
        assert await found.storage.find_commit("main", commit_id_of(second.claim, 2)) == 2

    @pytest.mark.parametrize(
        "body",
        [b"", b"\0", b"h\0i\0", bytes(range(256)), b"\xff\xfe", "\\u0000 \U0001f600".encode(), b'{"a": NaN}'],
        ids=repr,
    )
    async def test_a_body_is_bytes_and_comes_back_as_it_was(self, storage: Storage, main: Line, body: bytes) -> None:
        """I57: what the bytes mean is nobody's business here."""
        await main.commit(entry(10, body=body))

        assert await storage.read_entry("main", EntryId(10)) == body
        assert await storage.scan_entries("main", ConversationId(1)) == [body]

    async def test_names_may_hold_any_character(self, storage: Storage) -> None:
        names = ["a\0b", "a", "ü/../x", "'; --", "\U0001f600", " "]
        for name in names:
            line = await claimed(storage, name)
            await line.commit(conversation(1, key=name), submission(2, request=name), document(3, kind=name, key=name))

        for name in names:
            assert await storage.find_conversation(name, name) == b"conversation 1"
            assert await storage.find_submission(name, ConversationId(1), name) == b"submission 2"
            assert await storage.find_document(name, "conversation", 1, name, name) == b"document 3"
        assert [each.key for each in await storage.sessions()] == sorted(names)

    async def test_a_body_of_five_megabytes_is_kept(self, storage: Storage, main: Line) -> None:
        body = bytes(range(256)) * 20_000

        await main.commit(entry(10, body=body), task(11, body=body))

        assert await storage.read_entry("main", EntryId(10)) == body
        assert await storage.scan_tasks("main", live=True) == [body]

    async def test_a_batch_of_two_thousand_rows_is_one_commit(self, storage: Storage, main: Line) -> None:
        await main.commit(*[entry(id) for id in range(10, 1010)], *[task(id) for id in range(2000, 3000)])

        assert len(await storage.scan_entries("main", ConversationId(1), limit=5000)) == 1000
        assert len(await storage.scan_tasks("main", live=True, limit=5000)) == 1000
        assert (await storage.head("main"))[1] == 1
