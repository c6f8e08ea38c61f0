"""What the microphone tells: voices, echo and loudness."""
