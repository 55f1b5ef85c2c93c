"""The contract of a storage, as tests that a backend inherits.

    class TestMine(StorageContract):
        @pytest.fixture
        async def storage(self, tmp_path): ...

        async def open_beside(self, storage): ...

Run it plain, and through `reopening` to prove that nothing depends on what is only in memory.
A backend whose data several processes may share also passes `ProcessContract`.
"""

from __future__ import annotations

from perdure.testing.reopening import reopening
from perdure.testing.storage_commit_contract import CommitLaws
from perdure.testing.storage_document_contract import DocumentLaws
from perdure.testing.storage_owner_contract import OwnershipLaws
from perdure.testing.storage_record_contract import InboundLaws, TranscriptLaws, WorkLaws


class StorageContract(CommitLaws, OwnershipLaws, TranscriptLaws, WorkLaws, DocumentLaws, InboundLaws):
    """Every law that holds for all storages."""

    #: Whether several processes may open the same data: then `ProcessContract` holds too.
    supports_processes = False


__all__ = ["StorageContract", "reopening"]
