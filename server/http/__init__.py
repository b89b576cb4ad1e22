"""The HTTP gateway: OpenAI's routes over the same `TextGenerator` as gRPC, on a port of its own.

    errors.py     error class -> status and OpenAI's error body
    schema.py     the request bodies, checked
    wishes.py     request bodies -> sampling parameters and prompts
    answers.py    deltas -> OpenAI's choices, whole or in chunks
    events.py     server-sent events
    chat.py, completions.py, models.py, operations.py: the routes
    app.py        the routes put together; serve.py: the socket

Installed with the extra `http`.
"""
