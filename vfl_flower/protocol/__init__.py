"""Code that all algorithms share, for the server and the parties."""
