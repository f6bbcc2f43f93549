"""What the package raises."""


class ExportError(Exception):
    """The module cannot be exported as it is; the message says what to change."""


class CheckError(Exception):
    """The check could not be made: no compiler, a model that it refuses, a program that fails."""
