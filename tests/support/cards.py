"""Cards of parties that have no folder."""

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from vfl_flower.app.deployment.cards import Card
from vfl_flower.secure_aggregation.keys import encode_key


def public(curve=None):
    key = ec.generate_private_key(curve or ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def card(name="airline", byte=1):
    return Card(name, encode_key(bytes([byte]) * 32), public())
