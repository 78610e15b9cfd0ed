"""What compressed traffic costs: encoding, collectives, entropy coding, links, activations, and the count of it all."""
