"""Your own state beside the transcript: changed with it in one commit, and seen by a fork as it was."""

import perdure

Todos = perdure.document("shop.todos", history="rewindable", fork="as_of", initial=lambda: {"items": []})
Note = perdure.entry_kind("shop.note")


async def main() -> None:
    async with perdure.open("memory:", model=None) as session:
        desk = await session.conversation("desk")
        async with desk.commit() as tx:  # both, or neither
            todos = await tx.doc(Todos)
            todos["items"].append("write docs")
            note = tx.append(desk.id, Note, data={"text": "started"})
        async with desk.commit() as tx:
            (await tx.doc(Todos))["items"].append("ship")

        branch = await desk.fork(note.id)
        print(await branch.snapshot(Todos))  # as of the note
        print(await desk.snapshot(Todos))  # as it is now
        print(await desk.snapshot_as_of(Todos, note.id))


perdure.run(main)
