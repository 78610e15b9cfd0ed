"""Errors that several folders share: unusable data, and a disk that refuses."""

import errno

# reasons of the disk's and not of the program's: a traceback would not help whoever reads it
NOBODYS_MISTAKE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class DataError(ValueError):
    """The text, the token cache or the amount of data is not usable; the message says what, where and what to do."""
