"""Text to tokens and back: tokenizers, chat templates, tools, grammars, and reading text aloud."""
