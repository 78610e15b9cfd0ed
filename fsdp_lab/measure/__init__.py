"""What is measured while a run trains: step times, memory, profiles, bytes on the network interface."""
