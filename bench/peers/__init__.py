"""omserve beside other engines over W1 to W5: `python -m bench.peers`."""
