"""The `voxlane` command's subcommands, and what they share: terminals, sound cards, options."""
