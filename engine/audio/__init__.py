"""Audio before and after the recogniser: mel spectra, voice activity, segments, transcripts, word times."""
