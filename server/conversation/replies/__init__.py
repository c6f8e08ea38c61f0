"""The assistant's side: replies as they are written, spoken and heard, and the history."""
