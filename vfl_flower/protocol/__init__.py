"""Both ends of the wire: what every protocol shares, and no paper's own."""
