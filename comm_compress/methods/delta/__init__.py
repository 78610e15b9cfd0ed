"""The method `delta`: parameters are sent as changes since the last all-gather. Importing it registers the method."""

from comm_compress.methods.delta import method

__all__ = ["method"]
