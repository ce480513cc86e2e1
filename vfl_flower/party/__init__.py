"""A party's end: its data, its consent, and what answers the requests of a server."""
