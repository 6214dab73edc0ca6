"""What can go wrong. The texts are those of the engine."""


class WelteError(Exception):
    """An error of the engine."""


class ArgumentError(WelteError, ValueError):
    """An argument or an option has a value that cannot be used."""


class ModelError(WelteError):
    """The model cannot be loaded."""


class OutOfMemoryError(ModelError, MemoryError):
    """The model does not fit into the memory."""


class RequestError(WelteError, ValueError):
    """The request cannot be answered as it is."""


class BusyError(WelteError):
    """Too many requests are waiting."""


class CancelledError(WelteError):
    """The request was cancelled."""


class InternalError(WelteError):
    """A fault of the device or of the engine."""
