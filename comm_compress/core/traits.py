"""What is true of a method: where it may be used, and which laws it obeys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What a method says of itself, and what others may therefore do with it.

    A method sets ``traits = Traits(...)`` as a class attribute. Where its settings decide, ``__init__`` sets
    ``self.traits = replace(self.traits, ...)``. The tests hold every method to what it says here
    (`comm_compress.conformance.laws_for`).
    """

    unbiased: bool = False
    """Is the mean of the contribution, over the method's random numbers, the input?"""
    lossless: bool = False
    """Does the contribution equal the input bit for bit?"""
    for_gradients: bool = True
    """May it run a reduce-scatter?"""
    for_parameters: bool = False
    """May it run an all-gather? Only methods that bring every element back close to itself, the same at every
    call between two optimizer steps."""
    for_changes: bool = False
    """May it carry changes of parameters (`delta`), whose error is fed back, though not parameters themselves?"""
    every_element: bool = False
    """Of methods for changes: does every element come back within a step of its size, so that none is left out?"""
    for_activations: bool = False
    """May it carry activations and their gradients? Only codecs that remember nothing from one message to the next, and
    whose messages are decoded from nothing but themselves, to the sum over ranks where they are summed."""
    needs_segments: bool = False
    """Does it need to know where each parameter lies (`State.segments`)?"""
    additive: bool = True
    """Is the total the sum over ranks of their contributions? A majority vote is not."""
    sparse: bool = False
    """Is its contribution zero wherever the message holds nothing? Then that is most of it."""
    no_feedback: str = ""
    """Why error feedback makes no sense around it; empty when it does."""
    feedback_by_default: bool | None = None
    """Is error feedback on unless told otherwise, with these settings? None: as the method was registered."""
    max_ranks: int | None = None
    """The largest world size the method is defined for; None: any."""


def combine(first: Traits, *others: Traits) -> Traits:
    """Return the traits of a method that runs all of these: it may do what all may, and needs what any needs.

    Whether error feedback is on by default, ``first`` says.
    """
    everyone = (first, *others)
    for_parameters = all(traits.for_parameters for traits in everyone)
    for_changes = not for_parameters and all(traits.for_parameters or traits.for_changes for traits in everyone)
    return Traits(
        unbiased=all(traits.unbiased for traits in everyone),
        lossless=all(traits.lossless for traits in everyone),
        for_gradients=all(traits.for_gradients for traits in everyone),
        for_parameters=for_parameters,
        for_changes=for_changes,
        every_element=for_changes and all(traits.for_parameters or traits.every_element for traits in everyone),
        for_activations=all(traits.for_activations for traits in everyone),
        needs_segments=any(traits.needs_segments for traits in everyone),
        additive=all(traits.additive for traits in everyone),
        sparse=any(traits.sparse for traits in everyone),
        no_feedback=next((traits.no_feedback for traits in everyone if traits.no_feedback), ""),
        feedback_by_default=first.feedback_by_default,
        max_ranks=min((traits.max_ranks for traits in everyone if traits.max_ranks is not None), default=None),
    )
