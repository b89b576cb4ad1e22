"""KV blocks: who holds which, what they contain, how they lie in device memory."""
