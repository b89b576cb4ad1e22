"""The HTTP gateway: OpenAI's routes over the same `TextGenerator` as gRPC, on a port of its own.

    errors.py     error class -> status and OpenAI's error body
    json_route.py, schema.py: the request bodies, read and checked
    wishes.py     request bodies -> sampling parameters and prompts
    answers.py    deltas -> OpenAI's choices, whole or in chunks
    answer_reader.py, think_splitter.py, call_parser.py: text -> thought, content and calls
    tools.py, reasoning.py: what a request's tools ask for, what the template shows of thoughts
    events.py     server-sent events
    chat.py, completions.py, models.py, operations.py: the routes
    responses.py  OpenAI's newer route; responses_schema.py, responses_items.py
    tgi.py        text-generation-inference's routes; tgi_schema.py, tgi_parts.py, tgi_errors.py
    app.py        the routes put together; serve.py: the socket

Installed with the extra `http`.
"""
