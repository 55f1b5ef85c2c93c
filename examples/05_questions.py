"""A question waits for a person, across restarts, and is answered once."""

import perdure


class Deploy(perdure.Task):
    kind = "ops.deploy"

    @perdure.phase(first=True)
    async def ask(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            question = tx.ask({"deploy": invocation.input["version"]}, owner=invocation)
            await tx.wait([question], then=self.decide, question=question.id)

    @perdure.phase
    async def decide(self, invocation: perdure.Invocation, question: int) -> None:
        (outcome,) = await invocation.outcomes([question])
        async with invocation.commit() as tx:
            tx.complete({"deployed": outcome.result["answer"], "said": outcome.result["by"]})


async def main() -> None:
    registry = perdure.Registry([perdure.Extension(name="ops", tasks=[Deploy])])
    async with perdure.open("ops.db", model=None, registry=registry) as session:
        ops = await session.conversation("ops")
        async with ops.commit() as tx:
            deploy = tx.create_task(Deploy, {"version": "1.2"})
        await session.until(lambda: bool(session.inspect().questions))

    async with perdure.open("ops.db", model=None, registry=registry) as session:  # after a restart
        (question,) = await (await session.conversation("ops")).questions()
        await question.answer(True, by="ann")
        try:
            await question.answer(False, by="ben")
        except perdure.AlreadyAnswered as error:
            print(error)
        print(await session.wait_task(deploy.id))


perdure.run(main)
