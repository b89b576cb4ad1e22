"""`export-om inspect FILE.om`: what an OM file says about itself, real or simulated.

Owns the facts (`facts.py`), where they are found (`gather.py`, `graph_facts.py`), and how they are
shown (`text.py`, `as_json.py`). The format is `omruntime/om_file/`.
"""
