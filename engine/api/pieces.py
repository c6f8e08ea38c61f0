"""What of an answer in text and sound was heard. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SOUND_END = 2048
"""The first number of a frame that ends a stretch of sound: nothing is heard of it."""


def heard_pieces(pieces: Sequence[tuple[int, ...]], samples: int, frame_samples: int) -> tuple[tuple[int, ...], ...]:
    """Return an answer up to the last frame of which a sample was heard, and nothing after it.

    All of an answer that was heard to its end: what follows its last frame makes no sound.
    """
    sounds = [place for place, piece in enumerate(pieces) if len(piece) > 1 and piece[0] != SOUND_END]
    heard = -(-samples // frame_samples)
    if heard >= len(sounds):
        return tuple(pieces) if sounds else ()
    return tuple(pieces[: sounds[heard - 1] + 1]) if heard else ()
