"""What a run leaves for people and for CI: the page, JUnit, and both again from a run's folder."""
