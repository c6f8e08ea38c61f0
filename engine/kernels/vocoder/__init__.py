"""The last steps of a voice: spectra to samples."""
