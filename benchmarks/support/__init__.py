"""What the scripts in benchmarks/ share; Python puts a script's folder on the import path, so they find it."""
