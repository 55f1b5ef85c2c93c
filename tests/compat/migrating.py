"""A process of the next version: it knows one more migration, and opens a store to write.

migrating.py STORE
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from perdure.backends import sqlite_schema
from perdure.backends.sqlite import open_sqlite
from perdure.testing.crash import install_from_environment

NEXT = sqlite_schema.newest_schema() + 1
#: Changes every entry, and leaves a row each time that it runs.
SCRIPT = """
CREATE TABLE migrated (n INTEGER NOT NULL) STRICT;
INSERT INTO migrated VALUES (1);
ALTER TABLE entry ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE entry SET size = length(body);
"""


async def main(path: Path) -> None:
    known = {**sqlite_schema.migrations(), NEXT: SCRIPT}
    sqlite_schema.migrations = lambda: known  # type: ignore[assignment]
    storage = await open_sqlite(path, vfs=install_from_environment())
    await storage.release((await storage.claim("finished")).claim)
    await storage.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
