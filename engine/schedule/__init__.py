"""Which requests run in the next step, and how many tokens of each. Pure: no model, no device, no clock."""
