"""Many requests over one stream: `python session.py [TARGET]`."""

import asyncio
import sys
from contextlib import aclosing

from omruntime import SamplingParams
from server.client import AsyncClient, AsyncClientSession

PROMPTS = [f"{number} plus {number} is" for number in range(1, 9)]


async def answer(session: AsyncClientSession, prompt: str) -> str:
    """The whole answer to one prompt."""
    params = SamplingParams(temperature=0, max_new_tokens=8)
    return "".join([delta.text async for delta in session.stream(prompt, params)])


async def main(target: str) -> None:
    """Ask everything at once, over one stream."""
    async with AsyncClient(target) as client, client.session() as session:
        # This reader stops after one piece, and holds up nobody: each request has its own credits.
        long = SamplingParams(temperature=0, max_new_tokens=100, ignore_eos=True)
        async with aclosing(session.stream("Once upon a time", long)) as paused:
            first = await anext(paused)
            for prompt, text in zip(
                PROMPTS, await asyncio.gather(*(answer(session, p) for p in PROMPTS)), strict=True
            ):
                print(f"{prompt}{text!r}")
            rest = [delta.text async for delta in paused]
            print(f"the paused reader took {len(first.text) + len(''.join(rest))} characters")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"))
