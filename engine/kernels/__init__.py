"""One file per operation: a torch reference that is the truth, faster implementations, and a checked dispatcher."""
