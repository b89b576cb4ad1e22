"""Ask a server for whole answers and for streams: `python blocking.py [TARGET]`."""

import sys

from omruntime import SamplingParams
from omruntime.errors import CallError
from server import ChatMessage
from server.client import CallOptions, Client, Retries

target = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
params = SamplingParams(temperature=0, max_new_tokens=16)

# A full server says when to come back; such refusals are tried again, accepted requests never.
with Client(target, retries=Retries(max_retries=4)) as client:
    client.wait_ready(60)

    answer = client.generate("The capital of France is", params).answers[0]
    assert answer.usage is not None
    print(f"{answer.text!r} {answer.finish_reason} {answer.usage.num_output_tokens} tokens")

    for delta in client.stream([ChatMessage("user", "Name three fruits.")], params):
        print(delta.text, end="", flush=True)
    print()

    # Leaving a stream early ends the request on the server, as a deadline does.
    stream = client.stream("Once upon a time", params, CallOptions(timeout_s=30))
    print(next(stream).text)
    stream.close()

    try:
        client.generate("x", options=CallOptions(model="another"))
    except CallError as error:
        print(f"{error.code}: {error}")
