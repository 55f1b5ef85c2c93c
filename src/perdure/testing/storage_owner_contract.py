"""Laws of ownership (K1): who may write, who lost that right, what a claim finds. And of handles that were closed."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import Fenced, SessionOwned, StorageFailed
from perdure.records import ConversationId, EntryId
from perdure.storage import Claim, Opened, Storage
from perdure.testing.storage_fixtures_contract import Beside, Line, StorageLaws, claimed, entry


class OwnershipLaws(StorageLaws):
    """What a claim promises."""

    async def test_a_new_session_is_empty_and_clean(self, storage: Storage) -> None:
        opened = await storage.claim("main")

        assert opened == Opened(claim=Claim("main", 1), head=opened.head, next_id=1, clean=True)
        assert opened.head == 0

    async def test_a_session_that_was_never_claimed_is_at_epoch_and_head_zero(self, storage: Storage) -> None:
        assert await storage.head("main") == (0, 0)
        assert await storage.sessions() == []

    async def test_every_claim_is_the_next_epoch(self, storage: Storage) -> None:
        for epoch in (1, 2, 3):
            opened = await storage.claim("main")
            assert opened.claim == Claim("main", epoch)
            assert await storage.head("main") == (epoch, 0)
            await storage.release(opened.claim)

    async def test_a_session_has_one_owner(self, main: Line, beside: Beside) -> None:
        second = await beside()

        with pytest.raises(SessionOwned) as refused:
            await second.claim("main")

        for word in ("main", "read", "hand", "take_over=True"):
            assert word in str(refused.value)
        await main.commit(entry(10))

    async def test_not_even_its_owner_claims_a_session_twice(self, storage: Storage, main: Line) -> None:
        with pytest.raises(SessionOwned, match="this"):
            await storage.claim("main")

        await main.commit(entry(10))

    async def test_of_two_that_claim_at_once_one_gets_it(self, storage: Storage, beside: Beside) -> None:
        others = [await beside() for _ in range(3)]

        results = await asyncio.gather(*[each.claim("main") for each in [storage, *others]], return_exceptions=True)

        assert sorted(type(each).__name__ for each in results) == ["Opened", *["SessionOwned"] * 3]

    async def test_another_session_of_the_store_is_free(self, main: Line, beside: Beside) -> None:
        other = await claimed(await beside(), "other")

        await asyncio.gather(other.commit(entry(10)), main.commit(entry(10)))

        assert other.opened.claim == Claim("other", 1)

    async def test_who_was_taken_over_is_fenced(self, main: Line, beside: Beside) -> None:
        await main.commit(entry(10))
        second = await claimed(await beside(), take_over=True)

        for seq in (2, 3):
            with pytest.raises(Fenced, match="main"):
                await main.at(seq, entry(20))

        assert await second.commit(entry(11)) == 2
        assert await second.storage.scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]
        with pytest.raises(Fenced):
            await main.at(3, entry(20))

    async def test_a_handle_can_take_over_from_itself(self, storage: Storage, main: Line) -> None:
        again = await claimed(storage, take_over=True)

        with pytest.raises(Fenced):
            await main.commit(entry(10))
        assert await again.commit(entry(11)) == 1

    async def test_a_take_over_goes_on_from_the_head_and_is_not_clean(self, main: Line, beside: Beside) -> None:
        await main.commit(entry(10), next_id=11)

        opened = await (await beside()).claim("main", take_over=True)

        assert (opened.head, opened.next_id, opened.clean) == (1, 11, False)

    async def test_a_released_session_is_free_and_clean(self, main: Line, beside: Beside) -> None:
        await main.commit(entry(10))
        await main.storage.release(main.claim)

        second = await claimed(await beside())

        assert second.opened.clean
        assert second.opened.head == 1
        await second.commit(entry(11))

    async def test_a_claim_that_was_given_back_writes_nothing(self, storage: Storage, main: Line) -> None:
        await storage.release(main.claim)

        with pytest.raises(Fenced, match="released"):
            await main.commit(entry(10))

        assert await storage.read_entry("main", EntryId(10)) is None

    async def test_what_was_admitted_before_a_release_is_kept(self, storage: Storage, main: Line) -> None:
        admitted = main.commit(entry(10))
        await storage.release(main.claim)

        assert await admitted == 1
        assert await storage.read_entry("main", EntryId(10)) == b"entry 10"

    async def test_the_clean_mark_is_used_up_by_the_next_claim(self, storage: Storage, beside: Beside) -> None:
        await storage.release((await storage.claim("main")).claim)
        second = await beside()
        assert (await second.claim("main")).clean

        await second.close()

        assert not (await (await beside()).claim("main")).clean

    async def test_who_closes_without_a_release_is_gone_and_left_no_clean_mark(
        self, main: Line, beside: Beside
    ) -> None:
        await main.commit(entry(10))
        await main.storage.close()

        opened = await (await beside()).claim("main")

        assert (opened.head, opened.clean) == (1, False)

    async def test_a_stale_claim_releases_nothing(self, main: Line, beside: Beside) -> None:
        second = await claimed(await beside(), take_over=True)

        await main.storage.release(main.claim)
        await main.storage.release(Claim("nobody", 1))

        await second.commit(entry(10))
        with pytest.raises(SessionOwned):
            await (await beside()).claim("main")

    async def test_sessions_are_listed_by_key_a_page_at_a_time(self, storage: Storage) -> None:
        for key in ("c", "a", "d", "b"):
            await storage.claim(key)

        assert [each.key for each in await storage.sessions()] == ["a", "b", "c", "d"]
        assert [each.key for each in await storage.sessions(limit=3)] == ["a", "b", "c"]
        assert [each.key for each in await storage.sessions(after="b", limit=1)] == ["c"]
        assert await storage.sessions(after="d") == []

    async def test_a_listing_names_the_live_owner(self, storage: Storage, beside: Beside) -> None:
        second = await beside()
        await second.claim("theirs")
        await storage.release((await storage.claim("free")).claim)

        free, theirs = await storage.sessions()
        assert (free.key, free.epoch, free.head, free.owner) == ("free", 1, 0, None)
        assert (theirs.key, theirs.epoch, theirs.owner) == ("theirs", 1, second.worker)

        await second.close()
        assert [each.owner for each in await storage.sessions()] == [None, None]

    async def test_reading_needs_no_claim(self, main: Line, beside: Beside) -> None:
        await main.commit(entry(10))
        reader = await beside()

        assert await reader.read_entry("main", EntryId(10)) == b"entry 10"
        assert await reader.read_entry("nobody", EntryId(10)) is None

    async def test_a_write_of_someone_else_is_a_change(self, storage: Storage, main: Line, beside: Beside) -> None:
        second = await beside()
        other = await claimed(second, "other")
        before = await storage.change_count()
        assert await storage.change_count() == before

        await other.commit(entry(10))

        after = await storage.change_count()
        assert after > before
        assert await storage.change_count() == after  # each asker compares with what it saw itself

    async def test_ones_own_writes_are_no_change(self, storage: Storage, main: Line) -> None:
        if self.reopens:
            pytest.skip("a storage opened anew knows no writes as its own")
        before = await storage.change_count()

        await main.commit(entry(10))

        assert await storage.change_count() == before

    async def test_closing_twice_is_closing(self, storage: Storage) -> None:
        await storage.close()
        await storage.close()

    async def test_a_closed_storage_takes_no_calls(self, storage: Storage, main: Line) -> None:
        if self.reopens:
            pytest.skip("it opens again")
        await storage.close()

        with pytest.raises(StorageFailed, match="closed"):
            await main.commit(entry(10))
        with pytest.raises(StorageFailed, match="closed"):
            await storage.read_entry("main", EntryId(10))
        with pytest.raises(StorageFailed, match="closed"):
            await storage.claim("main")
