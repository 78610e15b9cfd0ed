"""How ranks find each other: on this machine, under a launcher, or started by hand."""
