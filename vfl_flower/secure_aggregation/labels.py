"""Labels for the uses of secrets, so that no two uses derive the same key.

Each label is a name and a version. Increase the version when a derivation, or the use
of its key, changes.
"""

# Uses of the X25519 secret of two parties, or of a party's private key.
PAIRWISE_MASK = b"vfl_flower pairwise mask 1"
OWN_PAD = b"vfl_flower own pad 1"
RELAYED_MESSAGE = b"vfl_flower relayed message 1"
AGREED_SECRET = b"vfl_flower agreed secret 1"

# Uses of the secret of a party and a run.
RANDOM_STREAM = b"vfl_flower random stream 1"
SECRET_DRAW = b"vfl_flower secret draw 1"
MOMENTS_DEALER = b"vfl_flower dealer of moments 1"
ANGLES_DEALER = b"vfl_flower dealer of angles 1"
ALIGNMENT = b"vfl_flower alignment 1"

# Uses of the key of a session's state.
STATE_CIPHER = b"vfl_flower state cipher 1"
STATE_LABEL = b"vfl_flower state label 1"

# Uses of a secret that was derived, shared or sent by the dealer.
DEALT_RANDOMNESS = b"vfl_flower dealt randomness 1"
KEYED_IDS = b"vfl_flower keyed ids 1"
ROW_TAGS = b"vfl_flower row tags 1"
