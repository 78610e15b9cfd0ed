"""Who answers the requests of a compressor: real ranks (`transport`) or virtual ones in one process (`simulate`)."""
