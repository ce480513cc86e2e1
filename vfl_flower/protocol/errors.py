"""The one error whose text leaves a party."""


class PartyError(Exception):
    """A party refuses a step, with a sentence that is safe to send to the server.

    Its text names the rule, the argument or a column, never a value of the data, a
    path or a stack: it is the only exception whose text leaves the party.
    """
