"""One checkpoint on disk: read `folder` first; its names and contents, written by all ranks, read with care."""
