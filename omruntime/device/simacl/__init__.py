"""A strict simulator of the `acl` module: real signatures, host memory, no mercy.

It stands for pyACL where there is no card: the code that drives a card runs unchanged over it.
Where the real library is undefined or silently wrong, `UndefinedBehaviourError` is raised. It
runs simulated OMs, which `simatc` writes, and is chosen by name alone.

    signatures.py  argument parsing from data/signatures.json
    surface.py     the module's names and return shapes
    state.py       all that one process holds; objects.py, loaded_model.py: its parts
    memory.py      contents, bounds, accounting and poison
    running.py     queued work, which runs when a program waits
    *_calls.py     the functions, by what they are about
"""

from omruntime.device.simacl.card import Delays, SimulatedCard
from omruntime.device.simacl.errors import NotSimulatedError, UndefinedBehaviourError
from omruntime.device.simacl.simulation import Simulation

__all__ = [
    "Delays",
    "NotSimulatedError",
    "SimulatedCard",
    "Simulation",
    "UndefinedBehaviourError",
]
