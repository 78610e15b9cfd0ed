"""What an all-reduce of activations costs: `ranks` measures it, on two ranks of this machine."""
