"""The compute process. It knows tokens, samples and blocks; it does not know people, sockets or conversations."""
