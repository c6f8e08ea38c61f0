"""One module per operation: a torch reference, faster implementations checked against it, and a dispatcher."""
