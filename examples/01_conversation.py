"""A conversation on an SQLite file: what was submitted is durable, and asking again with the same request id runs
nothing twice."""

import perdure


async def main() -> None:
    async with perdure.open("chat.db", model="demo") as session:
        chat = await session.conversation("first")
        sent = await chat.submit("Say hello.", request_id="hello-1")  # durable when this returns
        done = await sent.wait()
        assert isinstance(done, perdure.Answered)
        print(done.text)

        again = await chat.submit("Say hello.", request_id="hello-1")
        assert again == sent  # the same submission: no second run

    async with perdure.open("chat.db", model="demo") as session:  # another day, another process
        chat = await session.conversation("first")
        async for entry in chat.history():
            print(entry.id, entry.kind)


perdure.run(main)
