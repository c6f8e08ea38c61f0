"""Make the speech of the package anew: `python -m voxlane_lab.sounds.make_shipped FOLDER`. It needs the extra [speech].

FOLDER keeps what Kokoro says, so that the command can be stopped and goes on later. It takes an hour on two cores.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np

from voxlane_lab.agents.voice import counting_wanted
from voxlane_lab.runner import wanted_speech
from voxlane_lab.scenario_library import ALL, load
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.shipped import FILE, PackedClip, write
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.sounds.voices import kokoro
from voxlane_lab.values import USER_RATE


def needed() -> list[Wanted]:
    """Return all speech that the shipped scenarios need, and the planted agent that counts."""
    return list(dict.fromkeys([*wanted_speech(load([ALL])), *counting_wanted()]))


def main() -> None:
    """Make what is missing, pack all, and say how well it was kept."""
    corpus, wanted = Corpus(Path(sys.argv[1]), lambda: kokoro()), needed()
    asyncio.run(corpus.prepare(wanted, lambda done, total: print(f"{done} of {total} clips", flush=True)))
    clips, noise_db, samples = {}, [], 0
    for one in wanted:
        clip = corpus.speech(one)
        small = PackedClip.of(clip.pcm, clip.voiced)
        clips[corpus.name(one)] = small
        error = clip.pcm - small.sound().astype(np.float64)
        noise_db.append(10 * np.log10((error**2).mean() / (clip.pcm.astype(np.float64) ** 2).mean()))
        samples += len(clip.pcm)
    write(FILE, dict(sorted(clips.items())))
    print(f"{len(clips)} clips, {samples / USER_RATE:.0f} s, {FILE.stat().st_size / 1e6:.2f} MB")
    print(f"what packing adds is {max(noise_db):.1f} dB at most against the speech")


if __name__ == "__main__":
    main()
