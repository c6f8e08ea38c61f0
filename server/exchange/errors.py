"""What goes wrong with a call through the exchange."""


class ExchangeError(RuntimeError):
    """The exchange or the phone cannot be installed or started. The text is one line for a person."""


class CallRefused(RuntimeError):
    """The exchange ended the call before it was answered."""


class CallSilent(RuntimeError):
    """Something that a call waits for did not happen in time."""
