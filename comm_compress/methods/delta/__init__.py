"""The method `delta`: parameters are sent as changes since the last all-gather."""
