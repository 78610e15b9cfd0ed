"""The page about one judged method, from the facts of `experiments.judge` and from results rows. Begin with `page`."""
