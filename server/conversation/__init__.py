"""One conversation as a state machine: events in, effects out. No I/O, no clock, no asyncio."""
