"""The person's side of a call: speech, spoken sounds, noises and beds, made offline from seeds."""
