"""hibari: English speech at 24 kHz from 6 million parameters."""
