"""What is wrong with text, a token cache or the amount of data."""


class DataError(ValueError):
    """The text, the token cache or the amount of data is not usable; the message says what, where and what to do."""
