"""How a voice is asked to speak, voices cloned from recordings, and the times of spoken words."""
