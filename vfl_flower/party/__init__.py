"""A party's side: its data, its consent and its answers to the server's requests."""
