"""The person's side: what is said, when a turn ends, and who has the floor."""
