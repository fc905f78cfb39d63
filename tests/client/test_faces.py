"""Every face answers alike: the same steps give the same results, the same errors and the same state in the end."""

from __future__ import annotations

import pytest

from tests.support.dose import dose
from tests.support.face_steps import Steps
from tests.support.faces import Face, Outcome, Step
from tests.support.faces_more import ALL_FACES

SEEDS = dose(8, 150)
STEPS = dose(250, 800)


def disagreements(faces: list[Face], step: Step) -> dict[str, Outcome]:
    """What each face answers, when they are not all of one mind or one of them has crashed."""
    outcomes = {face.name: face.do(step) for face in faces}
    first = outcomes[faces[0].name]
    if all(outcome == first and outcome.what != "crashed" for outcome in outcomes.values()):
        return {}
    return outcomes


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_face_gives_the_same_answers_and_leaves_the_same_state(seed):
    steps = Steps(seed)
    faces = [kind(name, seed) for name, kind in ALL_FACES.items()]
    try:
        for step in [*steps.first(), *steps.some(STEPS)]:
            found = disagreements(faces, step)
            assert not found, "\n".join([str(step), *(f"{name}: {outcome}" for name, outcome in found.items())])
        right = faces[0].picture()
        for face in faces[1:]:
            assert face.picture() == right, face.name
    finally:
        for face in faces:
            face.close()
