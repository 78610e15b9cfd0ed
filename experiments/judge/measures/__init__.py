"""What is measured of a method, a file each; `bytes_by_ranks` and `rank` on two real ranks."""
