"""Which buckets to build for a traffic, and whether model and cache fit into the device.

`make_plan` in `planner.py` is the entry: lengths -> steps -> gears (`gear_search.py`) under a cost
model (`cost.py`), and a memory budget (`budget.py`). All of it is arithmetic on headers: no
weights are loaded and no device is needed.
"""
