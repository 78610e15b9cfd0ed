"""Devices of different speed on one machine, emulated by the processor time that each rank may take: `quotas`."""
