"""The root of every error this package raises on purpose."""

from typing import ClassVar


class TardisMachineError(Exception):
    """Raised with a text made for the person who reads it."""

    retriable: ClassVar[bool] = False
