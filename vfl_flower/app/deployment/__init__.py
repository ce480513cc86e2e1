"""Federations of organisations: their processes, certificates and party folders."""
