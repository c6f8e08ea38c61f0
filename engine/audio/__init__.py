"""Sound on its way to the recogniser: mel spectra, voice activity, segments, transcripts."""
