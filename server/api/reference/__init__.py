"""What every HTTP endpoint takes and answers, as an OpenAPI document and as a page to read."""
