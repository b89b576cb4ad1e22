"""Several answers at once with asyncio: `python with_asyncio.py [TARGET]`."""

import asyncio
import sys

from omruntime import SamplingParams
from server.client import AsyncClient

QUESTIONS = ("The capital of France is", "The opposite of hot is", "1, 2, 3,")


async def main(target: str) -> None:
    """Ask three questions at once, then one that is given up."""
    params = SamplingParams(temperature=0, max_new_tokens=8)
    async with AsyncClient(target) as client:
        await client.wait_ready(60)
        answers = await asyncio.gather(*(client.generate(q, params) for q in QUESTIONS))
        for question, generation in zip(QUESTIONS, answers, strict=True):
            print(f"{question}{generation.answers[0].text!r}")

        # Cancelling the task ends the request on the server.
        try:
            async with asyncio.timeout(0.5):
                await client.generate("Once upon a time", SamplingParams(ignore_eos=True))
        except TimeoutError:
            print("given up after half a second")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"))
