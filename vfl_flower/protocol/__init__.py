"""Code for both ends of the wire that all algorithms share."""
