"""Written text into the words that a voice says: numbers, dates, quantities, names, markup."""
