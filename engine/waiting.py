"""How threads of OpenMP wait for work: they sleep soon, so that other programs have the cores. No torch here."""

from __future__ import annotations

import os

# How often a thread of OpenMP looks for its next piece of work before it sleeps. By itself it does so for most of a
# millisecond: with other programs on two cores that made decoding 4 to 10 times slower. So few turns are no slower on a
# computer at rest.
_SPIN_VARIABLE = "GOMP_SPINCOUNT"
_SPIN_TURNS = "2000"


def limit_spinning() -> None:
    """Keep waiting threads from taking cores that others need, unless the user has set how they wait.

    Before torch is imported: its OpenMP reads this once.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", _SPIN_VARIABLE}:
        os.environ[_SPIN_VARIABLE] = _SPIN_TURNS


def environment_of_others() -> dict[str, str]:
    """The environment for a program that is not Baton's: its threads wait as they would without us."""
    return {
        name: value for name, value in os.environ.items() if (name, value) != (_SPIN_VARIABLE, _SPIN_TURNS)
    }
