"""What the server processes of one cell share: counts, a folder, and what they tell their supervisor."""
