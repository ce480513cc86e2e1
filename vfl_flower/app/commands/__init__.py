"""The subcommands of the command ``vfl-flower``."""
