"""Settings into a running engine: models found, loaded, checked and measured."""
