"""The one error of this package."""


class DataError(ValueError):
    """The text, the token cache or the amount of data is not usable; the message says what, where and what to do."""
