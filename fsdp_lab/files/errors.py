"""The error for unusable data, which the rooms of settings, data and training share."""


class DataError(ValueError):
    """The text, the token cache or the amount of data is not usable; the message says what, where and what to do."""
