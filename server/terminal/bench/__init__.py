"""`om-client bench`: a load generator, and what it measured."""
