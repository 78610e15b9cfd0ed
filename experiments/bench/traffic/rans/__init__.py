"""How fast rANS codes bytes: `coders` is who, `measuring` what is asked of them."""
