"""HTTP requests on their way in and out: heads, bodies, limits, errors as replies."""
