"""`om-client`: the client in a terminal."""
