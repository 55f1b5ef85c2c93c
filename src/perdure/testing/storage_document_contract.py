"""Laws of documents: incarnations by name, and values as bases and deltas (K17, K19, K22, K44)."""

from __future__ import annotations

from perdure.records import DocumentId, Seq
from perdure.storage import DocumentValue, PutBase, PutDelta, Remove, Storage
from perdure.testing.storage_fixtures_contract import Line, StorageLaws, document

DOC = DocumentId(5)


def base(body: bytes, *, prune: bool = False, of: DocumentId = DOC) -> PutBase:
    return PutBase(of, prune, body)


def delta(body: bytes, *, of: DocumentId = DOC) -> PutDelta:
    return PutDelta(of, body)


def value(seq: int, of_base: bytes, *deltas: bytes) -> DocumentValue:
    return DocumentValue(seq=Seq(seq), base=of_base, deltas=list(deltas))


class DocumentLaws(StorageLaws):
    """Documents and their values."""

    async def test_a_document_is_found_by_its_name(self, storage: Storage, main: Line) -> None:
        await main.commit(
            document(5, "todo"),
            document(6, "todo", key="a"),
            document(7, "todo", owner=2),
            document(8, "todo", scope="task"),
            document(9, "live"),
            document(10, "todo", scope="session", owner=0),
        )

        assert await storage.find_document("main", "conversation", 1, "todo", "") == b"document 5"
        assert await storage.find_document("main", "conversation", 1, "todo", "a") == b"document 6"
        assert await storage.find_document("main", "conversation", 2, "todo", "") == b"document 7"
        assert await storage.find_document("main", "task", 1, "todo", "") == b"document 8"
        assert await storage.find_document("main", "session", 0, "todo", "") == b"document 10"
        assert await storage.find_document("main", "conversation", 1, "todo", "b") is None
        assert await storage.find_document("main", "conversation", 3, "todo", "") is None

    async def test_a_retired_document_can_be_created_anew(self, storage: Storage, main: Line) -> None:
        await main.commit(document(5), base(b"old"))
        await main.commit(document(5, retired=True, body=b"retired"))
        assert await storage.find_document("main", "conversation", 1, "todo", "") is None

        await main.commit(document(6), base(b"new", of=DocumentId(6)))

        assert await storage.find_document("main", "conversation", 1, "todo", "") == b"document 6"
        assert await storage.read_document("main", DOC) == value(1, b"old")
        assert await storage.read_document("main", DocumentId(6)) == value(3, b"new")

    async def test_documents_of_an_owner_are_scanned_by_id(self, storage: Storage, main: Line) -> None:
        await main.commit(
            document(9, "todo", key="b"),
            document(5, "todo"),
            document(7, "live"),
            document(6, "live", retired=True),
            document(8, "todo", owner=2),
        )

        async def scan(**named: object) -> list[bytes]:
            return await storage.scan_documents("main", "conversation", 1, **named)  # pyright: ignore[reportArgumentType]

        assert await scan() == [b"document 5", b"document 7", b"document 9"]
        assert await scan(limit=2) == [b"document 5", b"document 7"]
        assert await scan(after=5, limit=1) == [b"document 7"]
        assert await scan(kind="todo") == [b"document 5", b"document 9"]
        assert await scan(retired=True) == [b"document 5", b"document 6", b"document 7", b"document 9"]
        assert await scan(kind="live", retired=True, after=6) == [b"document 7"]
        assert await scan(kind="none") == []

    async def test_a_value_is_the_newest_base_and_the_deltas_after_it(self, storage: Storage, main: Line) -> None:
        await main.commit(document(5), base(b"b1"))
        await main.commit(delta(b"d2"))
        await main.commit(delta(b"other", of=DocumentId(6)))
        await main.commit(delta(b"d4"))
        assert await storage.read_document("main", DOC) == value(1, b"b1", b"d2", b"d4")

        await main.commit(base(b"b5"))
        await main.commit(delta(b"d6"))

        assert await storage.read_document("main", DOC) == value(5, b"b5", b"d6")

    async def test_a_value_can_be_read_as_of_any_commit(self, storage: Storage, main: Line) -> None:
        await main.commit()
        await main.commit(document(5), base(b"b2"))
        await main.commit(delta(b"d3"))
        await main.commit(delta(b"d4"))
        await main.commit(base(b"b5"))
        await main.commit(delta(b"d6"))

        async def as_of(seq: int) -> DocumentValue | None:
            return await storage.read_document("main", DOC, at=Seq(seq))

        assert await as_of(1) is None
        assert await as_of(2) == value(2, b"b2")
        assert await as_of(3) == value(2, b"b2", b"d3")
        assert await as_of(4) == value(2, b"b2", b"d3", b"d4")
        assert await as_of(5) == value(5, b"b5")
        assert await as_of(6) == value(5, b"b5", b"d6")
        assert await as_of(600) == value(5, b"b5", b"d6")

    async def test_pruning_leaves_only_what_the_new_value_needs(self, storage: Storage, main: Line) -> None:
        await main.commit(document(5), base(b"b1"), document(6, "live"), base(b"kept", of=DocumentId(6)))
        await main.commit(delta(b"d2"), delta(b"kept too", of=DocumentId(6)))
        await main.commit(base(b"b3", prune=True))
        await main.commit(delta(b"d4"))

        assert await storage.read_document("main", DOC) == value(3, b"b3", b"d4")
        assert await storage.read_document("main", DOC, at=Seq(2)) is None
        assert await storage.read_document("main", DocumentId(6)) == value(1, b"kept", b"kept too")

    async def test_pruning_leaves_nothing_of_several_bases(self, storage: Storage, main: Line) -> None:
        for number in range(4):
            await main.commit(base(b"b%d" % number), delta(b"covered"))
            await main.commit(delta(b"d"))
        await main.commit(base(b"last", prune=True))

        assert await storage.read_document("main", DOC) == value(9, b"last")
        assert await storage.read_document("main", DOC, at=Seq(8)) is None

    async def test_a_base_covers_the_deltas_of_its_own_batch(self, storage: Storage, main: Line) -> None:
        await main.commit(base(b"b1"))
        await main.commit(delta(b"d2"), base(b"b2"))
        await main.commit(base(b"b3", prune=True), delta(b"d3"))
        await main.commit(delta(b"d4"))

        assert await storage.read_document("main", DOC, at=Seq(3)) == value(3, b"b3")
        assert await storage.read_document("main", DOC) == value(3, b"b3", b"d4")

    async def test_a_document_without_a_base_has_no_value(self, storage: Storage, main: Line) -> None:
        await main.commit(document(5))

        assert await storage.read_document("main", DOC) is None
        assert await storage.read_document("main", DocumentId(9)) is None

    async def test_a_removed_document_takes_its_values_along(self, storage: Storage, main: Line) -> None:
        await main.commit(document(5), base(b"b1"), document(6, "live"), base(b"kept", of=DocumentId(6)))
        await main.commit(delta(b"d2"))
        await main.commit(Remove("document", 5), Remove("document", 99))

        assert await storage.read_document("main", DOC) is None
        assert await storage.find_document("main", "conversation", 1, "todo", "") is None
        assert await storage.scan_documents("main", "conversation", 1, retired=True) == [b"document 6"]
        assert await storage.read_document("main", DocumentId(6)) == value(1, b"kept")

    async def test_long_chains_of_deltas_come_back_in_order(self, storage: Storage, main: Line) -> None:
        commits = 20 if self.reopens else 300
        await main.commit(base(b"b"))
        for number in range(commits):
            main.commit(delta(b"%d" % number))
        await main.commit()

        found = await storage.read_document("main", DOC)

        assert found == value(1, b"b", *[b"%d" % number for number in range(commits)])
