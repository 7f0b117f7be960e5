"""Notes on data. Results store them as text. Doubtful ones have a mark in it, which only this module writes and reads."""

from __future__ import annotations

from typing import Literal

Kind = Literal["note", "data", "contradicting_labels", "images_in_two_splits"]
"""Subjects of notes. All but `note` are cautions, and kinds of statements."""
_CAUTION = "Caution: "
_IN_TWO_CLASSES = "images that stand in more than one class, equal pixel for pixel: "
_IN_TWO_SPLITS = " images too, equal pixel for pixel"


def caution(text: str) -> str:
    """Return a note on doubtful data, with advice."""
    return f"{_CAUTION}{text}"


def in_two_classes(images: int) -> str:
    """Return the note on labels that contradict each other."""
    return f"{_IN_TWO_CLASSES}{images:,}"


def in_two_splits(shared: int, images: int, split: str, other: str) -> str:
    """Return the note on images of one split that are in another too."""
    return f"{shared:,} of {images:,} {split} images are {'training' if other == 'train' else other}{_IN_TWO_SPLITS}"


def kind(note: str) -> Kind:
    """Return what a note is about."""
    if note.startswith(_CAUTION):
        return "data"
    if note.startswith(_IN_TWO_CLASSES):
        return "contradicting_labels"
    return "images_in_two_splits" if note.endswith(_IN_TWO_SPLITS) else "note"


def words(note: str) -> str:
    """Return a note without its mark, for a sentence that says that it is a caution."""
    return note.removeprefix(_CAUTION)
