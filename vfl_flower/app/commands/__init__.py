"""The command ``vfl-flower``: what each of its commands does."""
