"""What the uses of secrets are called, so that no two derive the same key from one.

A name and a version: count up when a derivation, or what is made of its key, changes.
"""

SECRET_DRAW = b"vfl_flower secret draw 1"
RANDOM_STREAM = b"vfl_flower random stream 1"
