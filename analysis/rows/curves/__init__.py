"""Loss curves of runs: a file each, many in an archive, and what they say of arms. Begin with `files`."""
