"""Audio for the HTTP endpoints and the commands: decoding files, transcribing, speaking, writing files."""
