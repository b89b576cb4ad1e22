"""What the engine needs of constraints: compiled grammars, and matchers that follow answers.

Protocols only. `grammar/llguidance_compiler.py` fits them, and so do the tests' fakes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omruntime.constraint import Constraint

TokenMask = NDArray[np.bool_]
"""By token id, as wide as the logits: True for what may come next."""


class TokenMatcher(Protocol):
    """Follows one answer; its state is a function of the tokens it was told of, in order.

    For the engine thread, and for one thread at a time.
    """

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete and no text may follow."""

    def allowed(self) -> TokenMask:
        """Which tokens may come next; end tokens exactly when the answer may end here.

        The array is valid until the next call and belongs to the matcher.

        Raises:
            RequestError: The constraint cannot be followed further; says why.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take over the next token of the answer."""


class Grammar(Protocol):
    """A compiled constraint; may be shared by any number of matchers and threads.

    Attributes:
        is_intact: False once a matcher ran into a limit of what they share, so that a new
            grammar serves further answers better.
    """

    is_intact: bool

    def new_matcher(self) -> TokenMatcher:
        """One for the beginning of an answer; takes well under a millisecond."""
        ...


class GrammarCompiler(Protocol):
    """Turns constraints into grammars for one vocabulary."""

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile; may take seconds, and holds up no other thread.

        Raises:
            RequestError: Nothing can match, a part is not enforced, or it is too large; the
                message names the part.
        """
        ...

    def rest(self) -> None:
        """Nothing was to compile for a while: give back what can be had again."""

    def close(self) -> None:
        """Give everything back, in mid-work too; from any thread."""
